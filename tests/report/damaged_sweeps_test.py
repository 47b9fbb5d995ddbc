"""Files that somebody edited or that a disk damaged: one sentence or a report, never a traceback."""

import json
import math
import time

import pytest
from planted_sweeps import RATES, X, parabola, sweep_of, write

from depthmup_flax.report import make_report
from depthmup_flax.report.sweep_report import analysis_of
from depthmup_flax.report.tables import as_data, as_text
from depthmup_flax.storage.sweep_records import read_records, read_sweep
from depthmup_flax.util.errors import InputError


def text_of(directory):
    """The report for a terminal, without figures."""
    sweep = read_sweep([directory])
    analysis = analysis_of(sweep)
    data = as_data(sweep, analysis)
    json.dumps(data, allow_nan=False)
    return as_text(data, analysis)


SWEEP = sweep_of(
    lambda point: parabola(point, noise=0.1), {"model.depth": (4, 8, 16), X: RATES[2::2], "seed": range(2)}
)


def changed(directory, edit):
    """A sweep's directory after ``edit`` of the content of ``sweep.json`` and of the records."""
    write(directory, SWEEP)
    path, records_path = directory / "sweep.json", directory / "records.jsonl"
    info, records = json.loads(path.read_text()), [json.loads(line) for line in records_path.read_text().splitlines()]
    edit(info, records)
    path.write_text(json.dumps(info))
    records_path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return directory


def test_an_x_that_is_no_axis_is_a_sentence(tmp_path):
    directory = changed(tmp_path / "sweep", lambda info, records: info.update(x="seeds"))
    with pytest.raises(InputError, match="x is 'seeds', which is not one of its axes"):
        text_of(directory)
    bare = changed(tmp_path / "bare", lambda info, records: info.update(axes={}))
    assert len(read_records(bare)["run"]) == len(SWEEP.records)


def test_records_whose_point_and_hash_differ_are_left_out_and_counted(tmp_path):
    def edit(info, records):
        for record in (records[4], records[6]):
            record["point"] = {**record["point"], "seed": 9}

    text = text_of(changed(tmp_path / "sweep", edit))
    assert f"{len(SWEEP.records) - 2} runs" in text
    assert f"\n2 of {len(SWEEP.records)} records left out: their hash, their point and the base config" in text


@pytest.mark.parametrize("field", ["title", "seed"])
def test_a_field_that_is_missing_is_a_sentence_that_names_it(field, tmp_path):
    edit = lambda info, records: (info if field in info else records[3]).pop(field)
    with pytest.raises(InputError, match=field):
        text_of(changed(tmp_path / "sweep", edit))


def test_records_of_another_base_are_left_out_and_none_is_a_sentence(tmp_path):
    directory = changed(tmp_path / "sweep", lambda info, records: info["base"]["model"].update(width=5))
    with pytest.raises(InputError, match=r"no run of the sweep 'test' has ended: 24 of 24 records left out"):
        text_of(directory)


def test_of_runs_recorded_twice_the_last_one_counts(tmp_path):
    def edit(info, records):
        records.append({**records[1], "train_loss_avg": 7.5})

    sweep = read_sweep([changed(tmp_path / "sweep", edit)])
    assert [sweep.records[k].train_loss_avg for k in (0, 1)] == [SWEEP.records[0].train_loss_avg, 7.5]


def test_escape_codes_in_files_reach_neither_terminal_nor_page_and_dollars_start_no_formula(tmp_path):
    x, variants = "optimizer.$rate^{$\x07", "model.$name^{\x1b"
    loss = lambda point: 0.5 + (math.log2(point[x]) + 8) ** 2
    axes = {x: RATES[3:6], variants: ("a$", "$b^{$")}
    directory = write(tmp_path / "sweep", sweep_of(loss, axes, title="\x1b[31mred\u202e $x^{", x=x))
    report = make_report([directory], tmp_path / "out")
    assert "\n\\x1b[31mred\\u202e $x^{" in report.text
    for text in (report.text, report.paths[0].read_text(), (tmp_path / "out" / "report.json").read_text()):
        assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert "best $rate^{$\\x07" in report.text
    assert "a$" in report.text


@pytest.mark.slow
def test_many_thousand_records_are_a_table_in_seconds(tmp_path):
    axes = {"model.depth": (4, 8), X: RATES[:5], "seed": range(500)}
    directory = write(tmp_path / "sweep", sweep_of(lambda point: parabola(point, noise=0.1), axes))
    started = time.process_time()
    assert "5000 runs, 0 diverged" in text_of(directory)
    assert time.process_time() - started < 1.2  # measured: 0.5; 2.4 before seeds were counted by arrays
