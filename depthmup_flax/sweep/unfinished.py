"""What is kept of runs in training, so that a sweep that is interrupted goes on in the middle of them."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from depthmup_flax.errors import InputError, Preempted
from depthmup_flax.parallel.preemption import Preemption
from depthmup_flax.sweep.grid import Run
from depthmup_flax.sweep.program import Chunk, Outcome, Program, resumed_chunk
from depthmup_flax.training.checkpoint import Checkpointer


class Keeper:
    """Saves the chunk in training every so often, and when the process is asked to leave.

    Args:
      directory: holds the latest state of one chunk.
      every_s: seconds between saves.
      preemption: entered by the caller.
    """

    def __init__(self, directory: pathlib.Path, every_s: float, preemption: Preemption) -> None:
        self._directory, self._every_s, self._preemption = directory, every_s, preemption
        self._checkpointer: Checkpointer | None = None
        self._last = time.monotonic()

    def resumed(self, runs: Sequence[Run], make: Callable[[int, bool], Program]) -> Chunk | None:
        """The chunk that was in training, if all its runs are among ``runs``."""
        if not self._directory.is_dir():
            return None
        checkpointer = self._opened()
        meta = checkpointer.latest_meta()
        by_hash = {run.hash: run for run in runs}
        if meta is None or not by_hash.keys() >= set(meta["runs"]):
            return None
        if meta["devices"] != jax.device_count():
            print(
                f"{len(meta['runs'])} runs were left after step {meta['step']} on {meta['devices']} devices, and here "
                f"are {jax.device_count()}: they begin anew",
                flush=True,
            )
            return None
        program = make(meta["per_device"], meta.get("one_seed", False))  # which earlier versions did not have
        try:
            restored = checkpointer.restore(program.abstract_state)
        except InputError:
            restored = None
        if restored is None:
            print(f"what was kept of {len(meta['runs'])} runs cannot be read: they begin anew", flush=True)
            return None
        state, meta = restored
        ended = {run: Outcome(**outcome) for run, outcome in meta["ended"].items()}
        chunk_runs = [by_hash[run] for run in meta["runs"]]
        chunk = resumed_chunk(program, chunk_runs, meta["lanes"], state, meta["step"], meta["slices"], ended)
        chunk.elapsed_before_s = meta["elapsed_s"]
        return chunk

    def kept_runs(self) -> set[str]:
        """Hashes of the runs that were in training."""
        meta = self._opened().latest_meta() if self._directory.is_dir() else None
        return set() if meta is None else set(meta["runs"])

    def after_step(self, chunk: Chunk) -> None:
        """Saves if it is time to; `Preempted` if the process is asked to leave."""
        leaving = self._preemption.reached(chunk.step)
        if leaving or time.monotonic() - self._last >= self._every_s:
            self._save(chunk)
            self._last = time.monotonic()
        if leaving:
            assert self._checkpointer is not None
            self._checkpointer.wait()
            raise Preempted(
                f"asked to leave after step {chunk.step} of {len(chunk.runs)} runs; the same command goes on."
            )

    def forget(self) -> None:
        """Deletes what is kept: its chunk is recorded, or another one begins."""
        if self._checkpointer is not None:
            self._checkpointer.wait()
            self._checkpointer.close()
            self._checkpointer = None
        shutil.rmtree(self._directory, ignore_errors=True)
        self._last = time.monotonic()

    def _opened(self) -> Checkpointer:
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(self._directory, keep=1)
        return self._checkpointer

    def _save(self, chunk: Chunk) -> None:
        meta: dict[str, Any] = {
            "runs": [run.hash for run in chunk.runs],
            "lanes": chunk.lanes(),
            "per_device": chunk.program.per_device,
            "one_seed": chunk.program.one_seed,
            "devices": jax.device_count(),
            "elapsed_s": chunk.elapsed_s(),
            "step": chunk.step,
            "slices": chunk.slices,
            "ended": {run: dataclasses.asdict(outcome) for run, outcome in chunk.ended.items()},
        }
        if chunk.step > self._opened().latest_step:
            self._opened().save(chunk.step, chunk.state, meta)
