"""The line of a sweep's progress."""

import dataclasses
import io
import types

import numpy as np
import pytest
from tqdm import tqdm

from depthmup_flax.search.sweep import progress
from depthmup_flax.search.sweep.progress import SweepProgress
from depthmup_flax.storage.records.table import COMPLETED, DIVERGED
from depthmup_flax.util import messages


@dataclasses.dataclass
class Clock:
    now: float = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def record(loss, status=COMPLETED):
    return types.SimpleNamespace(status=status, train_loss_avg=loss)


def group(runs, cost):
    return types.SimpleNamespace(
        runs=[types.SimpleNamespace(hash=f"{cost} {i}") for i in range(runs)],
        experiment=types.SimpleNamespace(cost=cost),
        label="",
    )


def cohort(runs, group, step=0, ended=0):
    return types.SimpleNamespace(
        runs=runs,
        step=step,
        outcomes=dict.fromkeys(range(ended)),
        evaluation_s=0.0,
        program=types.SimpleNamespace(workload=group.experiment, periods=types.SimpleNamespace(total=100)),
    )


def test_a_log_shows_done_running_diverged_best_and_time_left_by_cost(clock, logged):
    small, large = group(4, 1.0), group(4, 3.0)
    earlier = {small.runs[0].hash: record(0.9), small.runs[1].hash: record(None, DIVERGED)}
    shown = SweepProgress([small, large], earlier)
    assert logged.messages == ["8 runs in 2 compiled groups, 2 already recorded"]
    now = cohort(small.runs[2:], small)
    shown.begin()
    shown.train(now)
    clock.now, now.step, now.outcomes = 61.0, 50, {"a": None}  # half of a cost of 2, of 14 that are left
    shown.refresh()
    assert logged.messages[1].split("  ")[1:] == [
        *("done 2/8", "running 1", "diverged 2", "train loss 0.9", "ETA 13:13", "elapsed 01:01")
    ]
    clock.now = 122.0
    shown.update([record(0.5), record(None, DIVERGED)], last=True)
    assert "done 4/8  diverged 2  train loss 0.5  ETA 12:12" in logged.messages[2]
    clock.now = 190.0
    shown.begin()
    with shown.compiling():
        assert "done 4/8  compiling  diverged 2  train loss 0.5  ETA 12:12" in logged.messages[3]
        clock.now = 260.0
    shown.train(cohort(large.runs, large))
    shown.update([record(0.6)] * 4, last=True)
    assert "done 8/8  diverged 2  train loss 0.5  ETA 00:00" in logged.messages[-1]
    shown.finish()
    assert logged.messages[-2:] == [
        "compiling and trials took 27 % of 260 s",
        "8 runs, 2 diverged (loss not finite), lowest training loss 0.5, 04:20",
    ]


def shown_seconds(line):
    minutes, seconds = line.partition("ETA ")[2].split()[0].split(":")
    return 60 * int(minutes) + int(seconds)


def test_the_time_left_is_true_where_compilations_take_most_of_it(clock, logged):
    compilation, training = 600.0, 240.0  # of each of three equal groups
    groups = [group(4, cost) for cost in (1.0, 1.0, 1.0)]
    for i, one in enumerate(groups):
        one.runs = [types.SimpleNamespace(hash=f"{i} {run.hash}") for run in one.runs]
        one.experiment.total_steps = one.experiment.parameters = 100
    shown, end = SweepProgress(groups, {}), 3 * (compilation + training)
    mesh = types.SimpleNamespace(size=1, devices=np.array([types.SimpleNamespace(platform="gpu")]))
    measured = []  # shown minus true seconds
    for one in groups:
        shown.begin()
        with shown.compiling():
            clock.now += compilation
        shown.start(one, 4, types.SimpleNamespace(mesh=mesh, per_device=4), training / 4 / 100)
        shown.train(now := cohort(one.runs, one))
        for now.step in (0, 30, 60):
            shown.refresh()
            measured.append(shown_seconds(logged.messages[-1]) - (end - clock.now))
            clock.now += 0.3 * training
        clock.now += 0.1 * training
        shown.update([record(0.5)] * 4, last=True)
        measured.append(shown_seconds(logged.messages[-1]) - (end - clock.now))
    assert np.abs(measured).max() < 1


def test_a_smaller_program_that_is_compiled_in_the_middle_is_no_training(clock, logged):
    only = group(2, 1.0)
    shown = SweepProgress([only], {})
    shown.begin()
    shown.train(now := cohort(only.runs, only))
    clock.now = 100.0
    with shown.compiling():
        clock.now = 1000.0
    clock.now, now.step = 1100.0, 50
    shown.refresh()
    assert shown_seconds(logged.messages[-1]) == 200


def test_the_first_evaluation_of_a_program_is_a_compilation_and_later_ones_are_not(clock, logged):
    only = group(6, 1.0)
    shown = SweepProgress([only], {})
    shown.begin()
    first = cohort(only.runs[:2], only)
    for now, seconds, left in ((first, 100.0, 80), (first, 100.0, 70)):  # 40 s for two runs, 140 s for four
        shown.train(now)
        clock.now += seconds
        now.evaluation_s = 60.0
        shown.update([record(0.5)] * 2, last=True)
        assert shown_seconds(logged.messages[-1]) == left


def test_on_a_terminal_it_says_compiling_until_the_next_runs_train(clock, monkeypatch, logged):
    terminal = io.StringIO()
    monkeypatch.setattr(messages, "rewrites_lines", lambda: True)
    monkeypatch.setattr(progress.sys, "stdout", terminal)
    first, second = group(1, 1.0), group(1, 2.0)
    shown = SweepProgress([first, second], {})
    with shown.compiling():
        assert "done 0/2  compiling  diverged 0" in terminal.getvalue()
        clock.now = 10.0
    shown.train(cohort(first.runs, first))
    clock.now = 20.0
    shown.update([record(0.5)], last=True)
    terminal.truncate(0)
    with shown.compiling():  # within the time between two rewritten lines
        pass
    assert "done 1/2  compiling  diverged 0" in terminal.getvalue()


def test_what_an_interrupted_cohort_had_trained_is_not_counted_as_this_processs_speed(clock, logged):
    only = group(2, 1.0)
    shown = SweepProgress([only], {})
    now = cohort(only.runs, only, step=90)
    shown.train(now)
    clock.now, now.step = 61.5, 95
    shown.refresh()
    assert "ETA 01:01" in logged.messages[-1]


def test_on_a_terminal_one_line_of_at_most_80_columns_is_rewritten(clock, monkeypatch, logged):
    terminal = io.StringIO()
    monkeypatch.setattr(messages, "rewrites_lines", lambda: True)
    monkeypatch.setattr(progress.sys, "stdout", terminal)
    many = group(12345, 1e9)
    shown = SweepProgress([many], {run.hash: record(0.123456) for run in many.runs[:5000]})
    now = cohort(many.runs[:1000], many, ended=100)
    shown.train(now)
    for step in range(1, 4):
        clock.now, now.step = 1000.0 * step, step
        shown.refresh()
    shown.close()
    assert len(logged.messages) == 1
    assert "\n" not in terminal.getvalue().rstrip("\n")
    lines = [line.strip() for line in terminal.getvalue().split("\r")]
    last = [line for line in lines if line][-1]
    assert last == f"done 5000/12345  running 900  diverged 100  train loss 0.12346  ETA {tqdm.format_interval(731500)}"
    assert len(last) <= 80
