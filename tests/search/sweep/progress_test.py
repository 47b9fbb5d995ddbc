"""The line of a sweep's progress."""

import dataclasses
import types

import pytest

from depthmup_flax.search.sweep import progress
from depthmup_flax.search.sweep.progress import SweepProgress
from depthmup_flax.storage.sweep_records import COMPLETED, DIVERGED


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
        program=types.SimpleNamespace(experiment=group.experiment, periods=types.SimpleNamespace(total=100)),
    )


def test_a_log_shows_done_running_diverged_best_and_time_left_by_cost(clock, logged):
    small, large = group(4, 1.0), group(4, 3.0)
    earlier = {small.runs[0].hash: record(0.9), small.runs[1].hash: record(None, DIVERGED)}
    shown = SweepProgress([small, large], earlier)
    assert logged.messages == ["8 runs in 2 compiled groups, 2 already recorded"]
    now = cohort(small.runs[2:], small)
    shown.train(now)
    clock.now, now.step, now.outcomes = 61.0, 50, {"a": None}  # half of a cost of 2, of 14 that are left
    shown.show()
    assert logged.messages[1].split("  ")[1:] == [
        *("done 2/8", "running 1", "diverged 2", "train loss 0.9", "ETA 0:13:13", "elapsed 0:01:01")
    ]
    clock.now = 122.0
    shown.update([record(0.5), record(None, DIVERGED)])
    assert "done 4/8  diverged 2  train loss 0.5  ETA 0:12:12" in logged.messages[2]
    clock.now = 260.0
    shown.train(cohort(large.runs, large))
    clock.now = 266.0
    shown.update([record(0.6)] * 4)
    assert "done 8/8  diverged 2  train loss 0.5  ETA 0:00:00" in logged.messages[-1]
    shown.finish()
    assert logged.messages[-1] == "8 runs, 2 diverged (loss not finite), lowest training loss 0.5, 0:04:26"


def test_what_an_interrupted_cohort_had_trained_is_not_counted_as_this_processs_speed(clock, logged):
    only = group(2, 1.0)
    shown = SweepProgress([only], {})
    now = cohort(only.runs, only, step=90)
    shown.train(now)
    clock.now, now.step = 62.0, 95
    shown.show()
    assert "ETA 0:01:02" in logged.messages[-1]
