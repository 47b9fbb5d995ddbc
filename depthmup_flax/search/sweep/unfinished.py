"""Checkpoints of the cohort in training, from which an interrupted sweep resumes."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import time
from collections.abc import Callable, Sequence, Set

import jax

from depthmup_flax.devices.preemption import Preemption
from depthmup_flax.storage.files import delete_tree
from depthmup_flax.trainer.engine.device_batches import consumed, expect
from depthmup_flax.trainer.engine.lanes import Cohort, LaneProgram, LaneRun
from depthmup_flax.trainer.runs.checkpoint import Checkpointer
from depthmup_flax.util.errors import InputError, Preempted
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)


class Unfinished:
    """Saves the cohort in training to ``directory`` every ``every_s`` seconds, and on a preemption."""

    def __init__(self, directory: pathlib.Path, every_s: float, preemption: Preemption) -> None:
        self._directory, self._every_s, self._preemption = directory, every_s, preemption
        self._checkpointer: Checkpointer | None = None
        self._last = time.monotonic()

    def restore(self, runs: Sequence[LaneRun], make: Callable[[int, bool], LaneProgram]) -> Cohort | None:
        """The saved cohort, if all its runs are among ``runs``, of one group; ``make``: `GroupPrograms.get`."""
        meta, by_hash = self._meta(), {run.hash: run for run in runs}
        if meta is None or not by_hash.keys() >= set(meta["runs"]):
            return None
        restored, reason = None, "cannot be read"
        if meta["devices"] != jax.device_count():
            reason = f"is of {meta['devices']} devices, but there are {jax.device_count()}"
        else:
            program = make(meta["per_device"], meta["one_seed"])
            with contextlib.suppress(InputError):
                restored = self._opened().restore(program.abstract_state)
        if restored is None:
            log.warning("the saved state of %d runs %s: restarting them from step 0", len(meta["runs"]), reason)
            return None
        state, meta = restored
        if not program.experiment.config.train.same_code:
            expect(program.experiment.dataset, meta.get("batches", {}), meta["step"])
        return Cohort(
            [by_hash[run] for run in meta["runs"]],
            program,
            program.place([by_hash[run] for run in meta["lanes"]]),
            state,
            meta["step"],
            meta["slices"],
            meta["ended"],
            elapsed_before_s=meta["elapsed_s"],
        )

    def saved_runs(self) -> set[str]:
        """Hashes of the runs of the saved cohort."""
        return set((self._meta() or {"runs": ()})["runs"])

    def after_call(self, cohort: Cohort) -> None:
        """Saves if it is time; on a preemption saves and raises `Preempted`."""
        preempted = self._preemption.reached()
        if preempted or time.monotonic() - self._last >= self._every_s:
            self._save(cohort)
            self._last = time.monotonic()
        if preempted:
            self._opened().wait()
            position = f"step {cohort.step} of {len(cohort.runs)} runs"
            raise Preempted(f"preempted after {position}; rerun the same command to resume.")

    def close(self, done: Set[str]) -> None:
        """Deletes the saved cohort, unless it has runs that are not ``done``: a later batch of a search."""
        if self.saved_runs() <= done:
            self.delete()
        elif self._checkpointer is not None:
            self._checkpointer.close()

    def delete(self) -> None:
        """Deletes the saved cohort: it is recorded, or another one starts."""
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None
        delete_tree(self._directory)
        self._last = time.monotonic()

    def _meta(self) -> Json | None:
        """Of the saved cohort; ``None`` if there is none, or only what a kill in `delete` has left of one."""
        try:
            return self._opened().latest_meta() if self._directory.is_dir() else None
        except InputError as error:
            log.warning("%s Its runs that are not recorded start from step 0.", error)
            return None

    def _opened(self) -> Checkpointer:
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(self._directory, keep=1)
        return self._checkpointer

    def _save(self, cohort: Cohort) -> None:
        meta = {
            "runs": [run.hash for run in cohort.runs],
            "lanes": list(cohort.lanes.lane_of),
            "per_device": cohort.program.per_device,
            "one_seed": cohort.program.one_seed,
            "devices": jax.device_count(),
            "elapsed_s": cohort.elapsed_s(),
            "step": cohort.step,
            "batches": consumed(cohort.program.experiment.dataset, [run.seed for run in cohort.runs], cohort.step),
            "slices": cohort.slices,
            "ended": cohort.outcomes,
        }
        if cohort.step > self._opened().latest_step:
            self._opened().save(cohort.step, cohort.state, meta)
