"""Progress of a sweep: one line that is rewritten on a terminal, lines at intervals in a log."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from tqdm import tqdm

from depthmup_flax.search.sweep.groups import Group
from depthmup_flax.storage.records.table import DIVERGED, MEANS_DIVERGED, Record
from depthmup_flax.trainer.engine.lanes import Cohort, LaneProgram
from depthmup_flax.util import messages

log = logging.getLogger(__name__)

# Seconds between lines of a log: when runs end, and while they train.
_ENDED_EVERY_S, _TRAINING_EVERY_S = 5.0, 60.0
_REWRITE_EVERY_S = 0.2  # on a terminal
COMPILING, TRAINING = "compiling", "training"  # phases


class SweepProgress:
    """Shows runs done, in training and diverged, the lowest training loss and the time left.

    The time left is that of the remaining training, by `Experiment.cost` and the speed of the training so far, and that
    of the remaining groups' compilations, each as long as the mean of those so far.

    Args:
      groups: the whole grid of this shard.
      done: hash of a run -> its record, for runs that were recorded before.
    """

    def __init__(self, groups: Sequence[Group], done: Mapping[str, Record]) -> None:
        self._total = self._finished = self._diverged = 0
        self._cost_done = self._cost_left = 0.0
        self._best = math.inf  # lowest train_loss_avg
        self._cohort: Cohort | None = None  # in training
        self._first_step = 0  # of it, in this process
        self._groups = self._begun = 0  # with runs to train, and those of them that were begun
        # Seconds of compilations and trials, and of training; a smaller program may be compiled while a cohort trains.
        self._spent, self._phase = dict.fromkeys(("", COMPILING, TRAINING), 0.0), ""
        self._seconds_per_cost = math.nan  # of the last trial, until something has trained
        self._evaluated: LaneProgram | None = None  # the program that has evaluated runs, so that it is compiled
        self._started = self._shown = self._since = time.perf_counter()  # the last of the phase
        self._line: tqdm | None = None
        if messages.rewrites_lines():
            self._line = tqdm(bar_format="{desc}", file=sys.stdout, dynamic_ncols=True, leave=False)
        self.add(groups, done)
        recorded = f", {self._finished} already recorded" if self._finished else ""
        programs = "1 compiled group" if len(groups) == 1 else f"{len(groups)} compiled groups"
        log.info("%d runs in %s%s", self._total, programs, recorded)

    def add(self, groups: Sequence[Group], done: Mapping[str, Record]) -> None:
        """Counts the runs of further groups."""
        for group in groups:
            recorded = [done[run.hash] for run in group.runs if run.hash in done]
            self._total += len(group.runs)
            self._groups += len(recorded) < len(group.runs)
            self._cost_left += (len(group.runs) - len(recorded)) * group.experiment.cost
            self._count(recorded)

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Shows on a terminal that programs are compiled and tried, and counts the seconds."""
        before = self._enter(COMPILING)
        self._show(0.0 if self._line is not None else _TRAINING_EVERY_S)
        yield
        self._enter(before)

    def begin(self) -> None:
        """Counts a group of which the compilation, or the resumed training, begins."""
        self._begun += 1

    def start(self, group: Group, runs: int, program: LaneProgram, seconds: float) -> None:
        """Shows what the group trains, and its measured speed."""
        self._seconds_per_cost = seconds * group.experiment.total_steps / group.experiment.cost
        devices = f" on each of {program.mesh.size} devices" if program.mesh.size > 1 else ""
        of = f"{group.experiment.total_steps} steps, {group.experiment.parameters:,} parameters"
        speed = f"{program.per_device} at a time{devices}, {1e3 * seconds:.3g} ms per run and step"
        log.info("%s: %d runs of %s; %s", group.label, runs, of, speed)

    def train(self, cohort: Cohort) -> None:
        """Counts the runs of ``cohort`` as running until `update`."""
        self._cohort, self._first_step = cohort, cohort.step
        self._enter(TRAINING)
        cost = len(cohort.runs) * cohort.program.workload.cost
        self._cost_left -= cost * cohort.step / cohort.program.periods.total  # done before an interruption
        self._show(_TRAINING_EVERY_S)

    def refresh(self) -> None:
        """Shows the state of the cohort in training, if it is time."""
        self._show(_TRAINING_EVERY_S)

    def update(self, records: Sequence[Record], *, last: bool) -> None:
        """Counts ended runs, those of the cohort in training; always shows the ``last`` of a group."""
        done = self._cohort_cost(to_its_end=True)
        self._cost_done += done
        self._cost_left -= done
        self._enter("")
        if self._cohort is not None and self._cohort.program is not self._evaluated:  # which compiled its evaluation
            self._evaluated = self._cohort.program
            self._spent[TRAINING] -= self._cohort.evaluation_s
            self._spent[COMPILING] += self._cohort.evaluation_s
        self._cohort = None
        self._count(records)
        self._show(0.0 if last else _ENDED_EVERY_S)

    def finish(self) -> None:
        """Shows the totals, and the part of the time in which nothing trained."""
        self.close()
        seconds = time.perf_counter() - self._started
        if compiling := self._spent[COMPILING]:
            log.info("compiling and trials took %.0f %% of %.0f s", 100 * compiling / seconds, seconds)
        elapsed = tqdm.format_interval(seconds)
        counts = f"{self._finished} runs, {self._diverged} diverged ({MEANS_DIVERGED})"
        log.info(f"{counts}{self._best_text(', lowest training loss ')}, {elapsed}", extra=messages.RESULT)

    def close(self) -> None:
        """Removes the line from a terminal."""
        if self._line is not None:
            self._line.close()

    def _count(self, records: Sequence[Record]) -> None:
        self._finished += len(records)
        self._diverged += sum(record.status == DIVERGED for record in records)
        losses = (record.train_loss_avg for record in records if record.status != DIVERGED)
        self._best = min([self._best, *(loss for loss in losses if loss is not None)])

    def _cohort_cost(self, *, to_its_end: bool = False) -> float:
        """Of what this process has trained of the cohort."""
        if self._cohort is None:
            return 0.0
        program = self._cohort.program
        total = program.periods.total
        steps = (total if to_its_end else self._cohort.step) - self._first_step
        return len(self._cohort.runs) * program.workload.cost * steps / total

    def _show(self, every_s: float) -> None:
        now = time.perf_counter()
        if now - self._shown < (_REWRITE_EVERY_S if self._line is not None and every_s else every_s):
            return
        self._shown = now
        if self._line is not None:
            self._line.set_description_str(self._text())
        else:
            log.info("  %s  elapsed %s", self._text(), tqdm.format_interval(now - self._started))

    def _text(self) -> str:
        running, diverged = "  compiling" if self._phase == COMPILING else "", self._diverged
        if self._cohort is not None:
            ended = len(self._cohort.outcomes)  # before their time
            running, diverged = f"  running {len(self._cohort.runs) - ended}", diverged + ended
        left = self._seconds_left()
        eta = tqdm.format_interval(left) if math.isfinite(left) else "?"
        counts = f"done {self._finished}/{self._total}{running}  diverged {diverged}"
        return f"{counts}{self._best_text('  train loss ')}  ETA {eta}"

    def _seconds_left(self) -> float:
        """Of training and compilations; NaN while no speed is known."""
        self._enter(self._phase)  # counts the seconds until now
        here = self._cohort_cost()
        done = self._cost_done + here
        seconds_per_cost = self._spent[TRAINING] / done if done else self._seconds_per_cost
        compiling = self._spent[COMPILING] / max(1, self._begun) * (self._groups - self._begun)
        return max(0.0, (self._cost_left - here) * seconds_per_cost) + max(0.0, compiling)

    def _enter(self, phase: str) -> str:
        """Counts the seconds of the phase that ends, and returns it."""
        now, before = time.perf_counter(), self._phase
        self._spent[before] += now - self._since
        self._since, self._phase = now, phase
        return before

    def _best_text(self, before: str) -> str:
        return f"{before}{self._best:.5g}" if math.isfinite(self._best) else ""
