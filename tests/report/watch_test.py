"""A report that follows a sweep while it runs."""

import contextlib
import dataclasses
import importlib
import json
import types

import pytest
from planted_sweeps import RATES, X, parabola, sweep_of

from depthmup_flax.report.watch import State, look, progress_line, watch
from depthmup_flax.storage.records.table import RecordWriter, Sweep, info_to_json
from depthmup_flax.storage.workdir import lock
from depthmup_flax.storage.workdir.seal import unsealed

pytestmark = pytest.mark.usefixtures("undrawn")
SWEEP = sweep_of(lambda p: None if p[X] == 2**-5 else parabola(p), {X: RATES[3:8], "seed": range(2)})
INFO = dataclasses.replace(SWEEP.info, runs=len(SWEEP.records))


def state(count, *, planned=10, running=True):
    return State(Sweep(SWEEP.info, SWEEP.records[:count], []), planned, running)


@pytest.fixture
def directory(tmp_path):
    """A sweep none of whose runs has ended."""
    path = tmp_path / "sweep"
    path.mkdir()
    (path / "sweep.json").write_text(info_to_json(INFO))
    return path


def append(directory, records):
    writer = RecordWriter(directory / "records.jsonl")
    writer.write_records(records)
    writer.close()


@pytest.fixture
def pauses(monkeypatch):
    """What happens in each pause between two looks, in order."""
    actions = []
    sleep = lambda seconds: actions.pop(0)()
    module = importlib.import_module("depthmup_flax.report.watch")
    monkeypatch.setattr(module, "time", types.SimpleNamespace(sleep=sleep))
    return actions


def interrupt():
    raise KeyboardInterrupt


def test_a_sweep_is_complete_when_all_planned_runs_have_ended_and_no_process_trains_it():
    assert state(10, running=False).complete
    assert not state(10, running=True).complete
    assert not state(9, running=False).complete
    assert not state(0, planned=0, running=False).complete
    assert state(3, planned=0, running=False).complete  # an earlier version's: the number is unknown


def test_the_progress_line_counts_runs_and_names_the_best():
    best = "best loss 0.5 (width 64, depth 4, learning rate 0.00391)"
    assert progress_line(state(9)) == f"9 of 10 runs done, 1 diverged, {best}"
    assert progress_line(state(5, planned=0)) == f"5 runs done, {best}"
    assert progress_line(state(2), "It transfers.").endswith("): It transfers.")
    assert progress_line(state(0)) == "0 of 10 runs done"


def test_the_progress_line_says_that_no_process_trains_an_incomplete_sweep():
    assert progress_line(state(4, running=False)).endswith(", waiting, as no process trains it")
    assert "waiting" not in progress_line(state(10, running=False))


def test_a_look_sees_the_records_the_plan_and_whether_a_process_trains(directory):
    append(directory, SWEEP.records[:4])
    with lock.held(directory / ".lock-records"):
        now = look([directory])
        assert (len(now.sweep.records), now.planned, now.running) == (4, 10, True)
    assert not look([directory]).running


def test_the_number_of_planned_runs_is_unknown_in_a_sweep_json_of_earlier_versions(directory):
    path = directory / "sweep.json"
    fields = unsealed(path.read_text())
    assert fields.pop("runs") == look([directory]).planned == 10
    path.write_text(json.dumps(fields))
    assert look([directory]).planned == 0


def test_watching_renews_the_page_as_runs_end_and_stops_when_the_sweep_is_complete(directory, tmp_path, pauses):
    out, lines, opened, pages = tmp_path / "out", [], [], []
    training = contextlib.ExitStack()
    training.enter_context(lock.held(directory / ".lock-records"))
    page = lambda: (out / "report.html").read_text()
    pauses += [
        lambda: append(directory, SWEEP.records[:5]),
        lambda: (pages.append(page()), append(directory, SWEEP.records[5:8])),
        lambda: pages.append(page()),
        lambda: append(directory, SWEEP.records[8:]),
        lambda: training.close(),
    ]
    report = watch([directory], out, say=lines.append, every_s=7.0, opened=opened.append)
    assert not pauses
    assert lines[0] == "0 of 10 runs done: no report yet: no run of the sweep 'test' has ended: wait, or run it."
    assert [line.split(" runs")[0] for line in lines] == ["0 of 10", "5 of 10", "8 of 10", "10 of 10", "10 of 10"]
    assert opened == [out / "report.html"]
    assert ["5 runs" in pages[0], "8 runs" in pages[1], "10 runs" in page()] == [True] * 3
    assert all('http-equiv="refresh" content="7"' in text for text in pages)
    assert 'http-equiv="refresh"' not in page()
    assert report.data["runs"] == 10
    assert (out / "curves.png").exists()


def test_ctrl_c_ends_watching_with_a_report_of_the_runs_that_have_ended(directory, tmp_path, pauses):
    append(directory, SWEEP.records[:5])
    lines, opened = [], []
    pauses += [lambda: append(directory, SWEEP.records[5:6]), interrupt]
    report = watch([directory], tmp_path / "out", say=lines.append, opened=opened.append)
    assert report.data["runs"] == 6
    assert "stopped; the report is of the runs that have ended" in lines
    assert 'http-equiv="refresh"' not in report.paths[0].read_text()
    assert len(opened) == 1


def test_ctrl_c_before_the_first_report_writes_none(directory, tmp_path, pauses):
    lines = []
    pauses.append(interrupt)
    assert watch([directory], tmp_path / "out", say=lines.append) is None
    assert lines[-1] == "stopped before the first report"
    assert not (tmp_path / "out" / "report.html").exists()


def test_a_complete_sweep_is_reported_once(directory, tmp_path, pauses):
    append(directory, SWEEP.records)
    opened = []
    report = watch([directory], tmp_path / "out", say=lambda line: None, opened=opened.append)
    assert opened == report.paths[:1]
