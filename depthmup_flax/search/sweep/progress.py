"""Progress of a sweep: a bar on a terminal, lines at intervals in a log."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence

from depthmup_flax.search.sweep.groups import Group
from depthmup_flax.storage.sweep_records import DIVERGED, MEANS_DIVERGED, Record
from depthmup_flax.trainer.engine.lanes import Cohort, LaneProgram
from depthmup_flax.util import messages, progress

log = logging.getLogger(__name__)

# Seconds between lines of a log: when runs end, and while they train.
_ENDED_EVERY_S, _TRAINING_EVERY_S = 5.0, 60.0


class SweepProgress:
    """Shows runs done, in training and diverged, the lowest training loss and the time left.

    The time left assumes that the remaining cost, by `Experiment.cost`, takes as long as the cost so far.

    Args:
      groups: the whole grid of this shard.
      done: hash of a run -> its record, for runs that were recorded before.
    """

    def __init__(self, groups: Sequence[Group], done: Mapping[str, Record]) -> None:
        self._total = self._finished = self._diverged = 0
        self._cost = self._cost_done = 0.0  # of what this process trains
        self._best = math.inf  # lowest train_loss_avg
        self._cohort: Cohort | None = None  # in training
        self._first_step = 0  # of it, in this process
        self._started = self._shown = time.perf_counter()
        self._bar = progress.bar(1.0)
        self.add(groups, done)
        recorded = f", {self._finished} already recorded" if self._finished else ""
        programs = "1 compiled group" if len(groups) == 1 else f"{len(groups)} compiled groups"
        log.info("%d runs in %s%s", self._total, programs, recorded)

    def add(self, groups: Sequence[Group], done: Mapping[str, Record]) -> None:
        """Counts the runs of further groups."""
        for group in groups:
            recorded = [done[run.hash] for run in group.runs if run.hash in done]
            self._total += len(group.runs)
            self._cost += (len(group.runs) - len(recorded)) * group.experiment.cost
            self._count(recorded)

    def start(self, group: Group, runs: int, program: LaneProgram) -> None:
        """Shows what the group trains, and how."""
        devices = f" on each of {program.mesh.size} devices" if program.mesh.size > 1 else ""
        of = f"{group.experiment.total_steps} steps, {group.experiment.parameters:,} parameters"
        at_once = min(program.per_device, math.ceil(runs / program.mesh.size))
        log.info("%s: %d runs of %s; %d at a time%s", group.label, runs, of, at_once, devices)

    def train(self, cohort: Cohort) -> None:
        """Counts the runs of ``cohort`` as running until `update`."""
        self._cohort, self._first_step = cohort, cohort.step
        cost = len(cohort.runs) * cohort.program.experiment.cost
        self._cost -= cost * cohort.step / cohort.program.periods.total  # done before an interruption
        self.show()

    def update(self, records: Sequence[Record]) -> None:
        """Counts ended runs, those of the cohort in training."""
        if self._cohort is not None:
            self._cost_done += self._trained(self._cohort, self._cohort.program.periods.total)
        self._cohort = None
        self._count(records)
        self.show(_ENDED_EVERY_S)

    def finish(self) -> None:
        """Shows the totals."""
        seconds = time.perf_counter() - self._started
        counts = f"{self._finished} runs, {self._diverged} diverged ({MEANS_DIVERGED})"
        best = self._best_text(", lowest training loss ")
        log.info(f"{counts}{best}, {progress.clock(seconds)}", extra=messages.RESULT)

    def close(self) -> None:
        """Removes the bar from a terminal."""
        if self._bar is not None:
            self._bar.close()

    def _count(self, records: Sequence[Record]) -> None:
        self._finished += len(records)
        self._diverged += sum(record.status == DIVERGED for record in records)
        losses = (record.train_loss_avg for record in records if record.status != DIVERGED)
        self._best = min([self._best, *(loss for loss in losses if loss is not None)])

    def _trained(self, cohort: Cohort, step: int) -> float:
        """The cost of what this process has trained of a cohort up to a step."""
        program = cohort.program
        return len(cohort.runs) * program.experiment.cost * (step - self._first_step) / program.periods.total

    def show(self, every_s: float = _TRAINING_EVERY_S) -> None:
        """Updates the bar; in a log, writes a line if the last one is ``every_s`` seconds old."""
        now = time.perf_counter()
        done = self._cost_done + (0.0 if self._cohort is None else self._trained(self._cohort, self._cohort.step))
        left = (now - self._started) * (self._cost - done) / done if done else math.nan
        running, diverged = "", self._diverged
        if self._cohort is not None:
            ended = len(self._cohort.outcomes)  # before their time
            running, diverged = f"  running {len(self._cohort.runs) - ended}", diverged + ended
        counts = f"done {self._finished}/{self._total}{running}  diverged {diverged}"
        eta = progress.clock(max(0.0, left)) if math.isfinite(left) else "?"
        text = f"{counts}{self._best_text('  train loss ')}  ETA {eta}"
        if self._bar is not None:
            self._bar.show(done, text, total=self._cost or 1.0)
        elif now - self._shown >= every_s:
            self._shown = now
            log.info("  %s  elapsed %s", text, progress.clock(now - self._started))

    def _best_text(self, before: str) -> str:
        return f"{before}{self._best:.5g}" if math.isfinite(self._best) else ""
