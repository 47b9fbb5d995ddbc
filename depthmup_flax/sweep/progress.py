"""Progress lines of a sweep."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Sequence

from tqdm import tqdm

from depthmup_flax.records import DIVERGED, Record
from depthmup_flax.sweep.lane_program import Program
from depthmup_flax.sweep.program_group import Group

_LINE_EVERY_S = 5.0


class SweepProgress:
    """Prints runs done and diverged, time taken and time left, by `Experiment.cost`, for the whole grid."""

    def __init__(self, groups: Sequence[Group], done: Container[str]) -> None:
        self._total = self._finished = self._diverged = 0
        self._cost_done = self._cost_left = 0.0
        self._best = math.inf  # loss in the current group
        self._started = self._printed = time.perf_counter()
        self.add(groups, done)
        recorded = f", {self._finished} already recorded" if self._finished else ""
        print(f"{self._total} runs in {len(groups)} compiled groups{recorded}", flush=True)

    def add(self, groups: Sequence[Group], done: Container[str]) -> None:
        """Counts the runs of further groups."""
        for group in groups:
            left = sum(run.hash not in done for run in group.runs)
            self._total += len(group.runs)
            self._finished += len(group.runs) - left
            self._cost_left += left * group.experiment.cost

    def start(self, group: Group, runs: int, program: Program, seconds: float) -> None:
        """Prints what the group trains, and its measured speed."""
        self._best = math.inf
        devices = f" on each of {program.mesh.size} devices" if program.mesh.size > 1 else ""
        of = f"{group.experiment.total_steps} steps, {group.experiment.parameters:,} parameters"
        speed = f"{program.per_device} at a time{devices}, {1e3 * seconds:.3g} ms per run and step"
        print(f"{group.label}: {runs} runs of {of}; {speed}", flush=True)

    def update(self, group: Group, records: Sequence[Record], *, last: bool) -> None:
        """Counts ended runs; prints a line if the previous one is old, or these are the ``last`` of the group."""
        self._finished += len(records)
        self._diverged += sum(record.status == DIVERGED for record in records)
        self._cost_done += len(records) * group.experiment.cost
        self._cost_left -= len(records) * group.experiment.cost
        losses = (record.train_loss_avg for record in records if record.status != DIVERGED)
        self._best = min([self._best, *(loss for loss in losses if loss is not None)])
        now = time.perf_counter()
        if now < self._printed + _LINE_EVERY_S and not last:
            return
        self._printed, elapsed = now, now - self._started
        left = elapsed * self._cost_left / self._cost_done
        best = f"{self._best:.5g}" if math.isfinite(self._best) else "-"
        times = f"elapsed {tqdm.format_interval(elapsed)}  ETA {tqdm.format_interval(max(left, 0.0))}"
        runs = f"runs {self._finished}/{self._total}  diverged {self._diverged}  best loss {best}"
        print(f"  {runs}  {times}", flush=True)

    def finish(self) -> None:
        """Prints the totals."""
        elapsed = time.perf_counter() - self._started
        print(f"{self._finished} runs, {self._diverged} diverged now, {tqdm.format_interval(elapsed)}", flush=True)
