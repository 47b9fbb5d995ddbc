"""Runs that train together, from their first or a saved step to their end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from depthmup_flax.storage.records.table import finite_or_none
from depthmup_flax.trainer.engine.lane_layout import LaneRun
from depthmup_flax.trainer.engine.lane_program import LaneProgram, Lanes, unstacked
from depthmup_flax.trainer.engine.outcome import Outcome, outcome, read
from depthmup_flax.trainer.engine.step import TrainState

# Runs that are left -> a program with fewer lanes for them, or None.
Shrink = Callable[[list[LaneRun]], LaneProgram | None]


@dataclasses.dataclass
class Cohort:
    """Runs in training, all at the same step."""

    runs: list[LaneRun]  # all of them
    program: LaneProgram  # trains those that are left
    lanes: Lanes  # of those that are left
    state: TrainState  # of the lanes
    step: int
    slices: dict[str, list[float | None]]  # hash of a run -> its mean loss over each time slice so far
    outcomes: dict[str, Outcome]  # hash of a run that has ended -> its outcome
    elapsed_before_s: float = 0.0  # seconds of training before an interruption
    started: float = dataclasses.field(default_factory=time.perf_counter)
    evaluation_s: float = 0.0  # seconds of the evaluation; the first one of a program compiles it

    @classmethod
    def of(cls, program: LaneProgram, runs: Sequence[LaneRun]) -> Cohort:
        """Fresh networks for ``runs``, which fit into ``program`` (`depthmup_flax.trainer.engine.lane_layout`)."""
        lanes = program.place(runs)
        return cls(list(runs), program, lanes, program.init(lanes), 0, {run.hash: [] for run in runs}, {})

    def elapsed_s(self) -> float:
        """Seconds of training."""
        return self.elapsed_before_s + time.perf_counter() - self.started

    def end_slice(self) -> list[LaneRun]:
        """Appends to `slices`, and records runs that diverged; returns the others."""
        numbers = unstacked(read(self.state))
        alive = []
        for run_hash, lane in self.lanes.lane_of.items():
            if run_hash not in self.outcomes:
                self.slices[run_hash].append(seven_digits(numbers[lane].recent.means()["loss"]))
                if numbers[lane].nonfinite_step >= 0:
                    self.outcomes[run_hash] = outcome(numbers[lane], None, seven_digits)
                else:
                    alive.append(self.lanes.runs_K[lane])
        return alive

    def move(self, program: LaneProgram, alive: Sequence[LaneRun]) -> None:
        """Moves the runs ``alive`` into a program with fewer lanes."""
        lanes = program.place(alive)
        self.state = program.select(self.state, [self.lanes.lane_of[run.hash] for run in lanes.runs_K])
        program.call_length.steps = self.program.call_length.steps
        self.program, self.lanes = program, lanes

    def finish(self) -> None:
        """Evaluates the runs that have not diverged."""
        started = time.perf_counter()
        left = {run_hash: lane for run_hash, lane in self.lanes.lane_of.items() if run_hash not in self.outcomes}
        if left:
            tests, numbers = self.program.test(self.state, self.lanes), unstacked(read(self.state))
            self.outcomes |= {run: outcome(numbers[lane], tests[lane], seven_digits) for run, lane in left.items()}
        self.evaluation_s = time.perf_counter() - started


def train(cohort: Cohort, shrink: Shrink, after_call: Callable[[Cohort], None]) -> list[Outcome]:
    """Trains ``cohort``, in place, to the end; returns the outcome of each of its runs.

    Args:
      cohort: fresh or resumed.
      shrink: called when half of the lanes are empty.
      after_call: called after every call of the program but the last; its exceptions end the training.
    """
    periods = cohort.program.periods
    calls = cohort.program.calls(cohort.lanes, cohort.step)
    since, started = cohort.step, time.perf_counter()
    try:
        while cohort.step < periods.total:
            call = next(calls)
            cohort.state = cohort.program.take(cohort.state, cohort.lanes, call)
            cohort.step += int(call.count)
            if periods.logs_at(cohort.step):
                alive = cohort.end_slice()
                if not alive:
                    break
                # A resumed cohort starts with single steps, and the load of the machine varies.
                cohort.program.call_length.adapt((cohort.step - since) / (time.perf_counter() - started))
                since, started = cohort.step, time.perf_counter()
                few = cohort.step < periods.total and len(alive) <= cohort.program.capacity / 2
                smaller = shrink(alive) if few else None
                if smaller is not None:
                    calls.close()
                    cohort.move(smaller, alive)
                    calls = smaller.calls(cohort.lanes, cohort.step)
            if cohort.step < periods.total:
                after_call(cohort)
    finally:
        calls.close()
    cohort.finish()
    return [cohort.outcomes[run.hash] for run in cohort.runs]


def seven_digits(value: float) -> float | None:
    """``value`` with the digits of a float32; ``None`` if it is not finite."""
    return finite_or_none(float(f"{float(value):.7g}"))
