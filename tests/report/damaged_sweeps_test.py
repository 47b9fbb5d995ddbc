"""Files that somebody edited or that a disk damaged: one sentence or a report, never a traceback; and kills."""

import contextlib
import copy
import dataclasses
import json
import math
import os
import random
import signal
import time

import pytest
from planted_sweeps import MULTIPLIER, RATES, X, parabola, sweep_of, write

from depthmup_flax.report import make_report
from depthmup_flax.report.make_report import analyses
from depthmup_flax.report.tables import as_data, as_text
from depthmup_flax.storage.records.run_hash import RunNames
from depthmup_flax.storage.records.table import Sweep, read_sweep
from depthmup_flax.storage.workdir.seal import unsealed
from depthmup_flax.util.errors import InputError, RunStopped, printable


def text_of(directory):
    """The report for a terminal, without figures."""
    sweep = read_sweep([directory])
    analysis, _ = analyses(sweep)
    data = as_data(sweep, analysis)
    json.dumps(data, allow_nan=False)
    return as_text(data, analysis)


TEXTS = ["", "abc", "$x^{", "a$b$c_", "\\frac{$", "\x1b[31mred", "\ud800", "\u202e\x00", "x" * 2000, "<script>"]
NUMBERS = [0, -1, 1, 3, 2**70, 10**400, 1e308, -1e308, 1e-320, 0.5, math.nan, math.inf]
VALUES = [None, True, *TEXTS, *NUMBERS, [], [1, 2], [None], ["a"], [[1]], {}, {"a": 1}]
NAMES = ["a.$x^{", "m.\x1b[1m", "optimizer.kwargs.eps", "model.stage_sizes", "model.name", "model", "x"]


def edit_anything(tree, rng):
    """Replaces, deletes, renames or adds a value somewhere in a tree."""
    places = []

    def visit(node):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
            places.append((node, key))
            visit(value)

    visit(tree)
    node, key = rng.choice(places)
    action = rng.random()
    if action < 0.7:
        node[key] = copy.deepcopy(rng.choice(VALUES))
    elif action < 0.85:
        del node[key]
    elif isinstance(node, dict):
        node[rng.choice(NAMES)] = node.pop(key)
    else:
        node.append(copy.deepcopy(rng.choice(VALUES)))


def edit_a_number(records, rng):
    """A number of a record has another value of its type, or is null."""
    record = rng.choice(records)
    losses = ("train_loss_avg", "train_loss", "test_loss", "wall_time_s")
    name = rng.choice([*losses, "seed", "width", "depth", "parameters", "steps", "slice_steps", "train_loss_slices"])
    loss = lambda: rng.choice([None, 1.0, -5.0, 1e308, -1e308, 1e-320, math.nan, 0.0])
    if name == "train_loss_slices":
        record[name] = [loss() for _ in range(rng.randrange(4))]
    else:
        record[name] = loss() if name in losses else rng.choice([0, 1, 2, 7, 10**6, 2**61])


def edit_a_point(info, records, rng):
    """An axis has another name, or another value in half of the records."""
    axis = rng.choice(list(info["axes"]))
    name = rng.choice([axis, *NAMES])
    info["axes"] = {name if key == axis else key: values for key, values in info["axes"].items()}
    info["x"] = name if info["x"] == axis else info["x"]
    value = copy.deepcopy(rng.choice(VALUES))
    for record in records:
        record["point"] = {name if key == axis else key: other for key, other in record["point"].items()}
        if rng.random() < 0.5:
            record["point"][name] = value


def planted(kind):
    """A small sweep: sizes, with a second axis, variants of text, variants of numbers."""
    axes = [
        {"model.depth": (4, 8, 16), X: RATES[2::2], "seed": range(2)},
        {"model.depth": (4, 8), MULTIPLIER: (0.5, 1.0, 2.0), X: RATES[2::3], "seed": range(2)},
        {"parametrization.preset": ("mup", "depth_mup"), "model.width": (16, 32, 64), X: RATES[1::3]},
        {X: RATES[::3], "model.block_depth": (1, 2), "seed": range(3)},
    ][kind]
    return sweep_of(lambda point: None if point[X] > 0.1 else parabola(point, noise=0.1), axes)


def damaged(directory, seed):
    """Writes a sweep with one to three random edits of its JSON; most records keep a name that fits their point."""
    rng = random.Random(seed)
    write(directory, planted(rng.randrange(4)))
    path, records_path = directory / "sweep.json", directory / "records.jsonl"
    info, records = unsealed(path.read_text()), [unsealed(line) for line in records_path.read_text().splitlines()]
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(["title", "number", "number", "point"])
        if kind == "title":
            info[rng.choice(["title", "figure", "scale"])] = rng.choice(TEXTS)
        elif kind == "number":
            edit_a_number(records, rng)
        else:
            edit_a_point(info, records, rng)
    names = RunNames(info["base"])
    for record in records:
        record["run"] = names.hash(record["point"])
    if rng.random() < 0.5:
        edit_anything(rng.choice([info, rng.choice(records)]), rng)
    path.write_text(json.dumps(info))
    records_path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return directory


@pytest.mark.filterwarnings("error")
def test_random_edits_give_a_report_or_one_sentence(tmp_path):
    reports = 0
    for seed in range(100):
        directory = damaged(tmp_path / str(seed), seed)
        try:
            text = text_of(directory)
            reports += 1
        except InputError as error:
            text = printable(str(error))
            assert "\n" not in text, seed
        assert all(character.isprintable() or character == "\n" for character in text), seed
    assert 13 < reports < 87  # the edits are neither harmless nor all fatal


@pytest.mark.slow
def test_random_edits_give_figures_or_one_sentence(tmp_path):
    reports = 0
    for seed in range(1000, 1006):
        directory = damaged(tmp_path / str(seed), seed)
        with contextlib.suppress(InputError):
            reports += make_report([directory], tmp_path / "out").paths[0].exists()
    assert reports > 0


SWEEP = planted(0)


def changed(directory, edit):
    """A sweep's directory after ``edit`` of the content of ``sweep.json`` and of the records."""
    write(directory, SWEEP)
    path, records_path = directory / "sweep.json", directory / "records.jsonl"
    info, records = unsealed(path.read_text()), [unsealed(line) for line in records_path.read_text().splitlines()]
    edit(info, records)
    path.write_text(json.dumps(info))
    records_path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return directory


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("train_loss_avg", "0.5", r'line 3: train_loss_avg is "0.5": it must be a number or null\. Delete the line'),
        ("train_loss_avg", 10**400, r"train_loss_avg is 10000.*\.\.\.: it must be a number or null"),
        ("status", None, "status is null: it must be completed or diverged"),
        ("status", "done", 'status is "done": it must be completed or diverged'),
        ("width", 0, "width is 0: it must be a whole number of at least 1"),
        ("steps", 1.5, "steps is 1.5: it must be a whole number of at least 0"),
        ("seed", True, "seed is true: it must be a whole number"),
        ("point", [], r"point is \[\]: it must be an object"),
        ("train_loss_slices", [1.0, "a"], r'train_loss_slices is \[1\.0, "a"\]: it must be a list of numbers and null'),
        ("wall_time_s", math.nan, "wall_time_s is NaN: it must be a finite number"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_a_field_of_a_wrong_type_is_named_with_its_line(field, value, message, tmp_path):
    directory = changed(tmp_path / "sweep", lambda info, records: records[2].update({field: value}))
    with pytest.raises(InputError, match=message):
        read_sweep([directory])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"axes": []}, r"sweep\.json is not what a sweep writes \(axes is \[\]: it must be an object of lists\)"),
        ({"axes": {X: 3}}, r'axes is {"optimizer\.learning_rate": 3}: it must be an object of lists'),
        ({"title": None}, "title is null: it must be a string"),
        ({"base": {"model": 3}}, r'base is {"model": 3}: it must be a config, with objects model'),
        ({"x": "seeds"}, "the sweep's x is 'seeds', which is not one of its axes"),
    ],
    ids=["axes", "axis", "title", "base", "x"],
)
def test_a_damaged_sweep_json_is_one_sentence(fields, message, tmp_path):
    directory = changed(tmp_path / "sweep", lambda info, records: info.update(fields))
    with pytest.raises(InputError, match=message):
        text_of(directory)


def test_records_whose_point_and_hash_or_point_and_seed_differ_are_left_out_and_counted(tmp_path):
    def edit(info, records):
        records[4]["point"] = {**records[4]["point"], "seed": 9}
        records[6]["seed"] = 9

    text = text_of(changed(tmp_path / "sweep", edit))
    assert f"{len(SWEEP.records) - 2} runs" in text
    assert f"note: 2 of {len(SWEEP.records)} records left out: their hash, their point and the base config" in text


def test_records_of_another_base_are_left_out_and_none_is_a_sentence(tmp_path):
    directory = changed(tmp_path / "sweep", lambda info, records: info["base"]["model"].update(width=5))
    with pytest.raises(InputError, match=r"no run of the sweep 'test' has ended: 24 of 24 records left out"):
        text_of(directory)


def test_an_empty_file_of_records_is_a_sentence(tmp_path):
    directory = changed(tmp_path / "sweep", lambda info, records: records.clear())
    with pytest.raises(InputError, match=r"no run of the sweep 'test' has ended: wait, or run it\."):
        text_of(directory)


def test_runs_recorded_twice_with_different_results_are_counted_and_the_last_one_counts(tmp_path):
    def edit(info, records):
        records.append({**copy.deepcopy(records[0]), "wall_time_s": 9.0})  # the same result
        records.append({**copy.deepcopy(records[1]), "train_loss_avg": 7.5})

    sweep = read_sweep([changed(tmp_path / "sweep", edit)])
    assert sweep.notes == [
        "runs that are recorded twice with different results: 1. The last record of each counts.",
    ]
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


def test_a_report_that_cannot_be_written_says_so(tmp_path, monkeypatch, undrawn):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("depthmup_flax.storage.workdir.files.os.replace", full)
    with pytest.raises(RunStopped, match=r"cannot be written any more \(No space left on device\): make room"):
        make_report([write(tmp_path / "sweep", SWEEP)], tmp_path / "out")


@pytest.mark.slow
def test_a_killed_report_leaves_every_file_old_or_new(tmp_path):
    out, several = tmp_path / "out", [write(tmp_path / "whole", SWEEP)]
    one = [record for record in SWEEP.records if record.seed == 0]
    info = dataclasses.replace(SWEEP.info, axes={**SWEEP.info.axes, "seed": [0]})
    other = [write(tmp_path / "part", Sweep(info, one, []))]
    contents = []
    for directories in (several, other):
        started = time.monotonic()
        make_report(directories, out)
        seconds = time.monotonic() - started
        contents.append({path.name: path.read_bytes() for path in out.iterdir() if path.name[0] != "."})
    assert contents[0].keys() == contents[1].keys()
    rng, killed = random.Random(0), 0
    for attempt in range(6):
        child = os.fork()
        if child == 0:
            make_report((several, other)[attempt % 2], out)
            os._exit(0)
        time.sleep(rng.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        killed += os.waitpid(child, 0)[1] == signal.SIGKILL
        for name, content in contents[0].items():
            assert (out / name).read_bytes() in (content, contents[1][name]), name
    assert killed > 3
    make_report(several, out)
    assert {name: (out / name).read_bytes() for name in contents[0]} == contents[0]


@pytest.mark.slow
def test_many_thousand_records_are_a_table_in_seconds(tmp_path):
    axes = {"model.depth": (4, 8), X: RATES[:5], "seed": range(2500)}
    directory = write(tmp_path / "sweep", sweep_of(lambda point: parabola(point, noise=0.1), axes))
    started = time.process_time()
    assert "25000 runs, 0 diverged" in text_of(directory)
    assert time.process_time() - started < 5  # measured: 1; 12 before seeds were counted by arrays
