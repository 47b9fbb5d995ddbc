"""Checkpoints by Orbax: the training state, and beside it what it means (config, parameter roles, data position)."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from depthmup_flax.errors import InputError, RunStopped
from depthmup_flax.files import write_atomically
from depthmup_flax.parallel import distributed

_UNKNOWN: list[int] = []  # a fingerprint that no state has

log = logging.getLogger(__name__)
# Checkpoints between evaluations have no metrics, on purpose.
logging.getLogger("absl").addFilter(lambda record: "did not provide metrics" not in record.getMessage())


class Checkpointer:
    """The latest checkpoints of a run and its best one, written in the background.

    Args:
      directory: created if absent; holds one folder per step.
      keep: how many of the latest to keep. The one with the highest ``test_accuracy`` is kept as well.
    """

    def __init__(self, directory: pathlib.Path, keep: int) -> None:
        self._directory = directory.absolute()

        def accuracy(metrics: Mapping[str, float]) -> float:
            return metrics["test_accuracy"]

        latest = policies.LatestN(keep)
        best = policies.BestN(n=1, get_metric_fn=accuracy, keep_checkpoints_without_metrics=False)
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([latest, best]),
            best_fn=accuracy,  # makes Orbax write the metrics, so that the best is still known after a restart
            cleanup_tmp_directories=True,
            async_options=_waiting_for_storage(),
        )
        self._manager = self._opened()

    def _opened(self) -> ocp.CheckpointManager:
        if distributed.is_first():
            for metrics in self._directory.glob("*/metrics/metrics"):
                if not _is_json(metrics):  # Orbax would not open
                    log.warning("the metrics of checkpoint %s are damaged, and deleted.", metrics.parents[1])
                    shutil.rmtree(metrics.parent)
        distributed.barrier("open checkpoints")
        return ocp.CheckpointManager(self._directory, options=self._options, item_names=("state", "meta"))

    @property
    def latest_step(self) -> int:
        """Of the latest checkpoint that was begun; -1 if there is none."""
        latest = self._manager.latest_step()
        return -1 if latest is None else latest

    def save(self, step: int, state: Any, meta: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Copies ``state`` off the devices and returns; the files appear, atomically, a little later.

        Args:
          step: of the training; must be above every saved one.
          state: pytree of arrays.
          meta: JSON: what the arrays mean.
          metrics: with ``test_accuracy``, which selects the best; ``None`` between evaluations.
        """
        whole = {**meta, "fingerprint": fingerprint(state)}
        whole["digest"] = _digest(whole)
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(whole))
        values = None if metrics is None else dict(metrics)
        saved = self._manager.save(step, args=items, metrics=values, force=True)
        if not saved:
            raise RuntimeError(f"checkpoint {step} was not written: {self._directory} holds a later one.")

    def wait(self) -> None:
        """Until what was saved is on the disk."""
        self._manager.wait_until_finished()

    def restore(self, abstract_state: Any) -> tuple[Any, dict[str, Any]] | None:
        """State and meta of the latest checkpoint that can be read, or ``None`` if there is none.

        A damaged one, behind which an older one can be read, is renamed to ``<step>.damaged`` and a warning says so.
        Damaged is also what can be read but is not what was saved, to the last bit.

        Args:
          abstract_state: pytree of ``jax.ShapeDtypeStruct`` with shardings, as the state will be used.

        Raises:
          InputError: there are checkpoints, and none can be read. Nothing is renamed then.
          RunStopped: of several processes this one cannot read the latest. Reading is done together, so that the others
            cannot be told; the next attempt sets it aside.
        """
        damaged: dict[int, Exception] = {}
        self._set_aside_what_was_noted()
        for step in sorted(self._manager.all_steps(), reverse=True):
            items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state), meta=ocp.args.JsonRestore())
            try:
                restored = self._manager.restore(step, args=items)
                # A lazily read file may fail only now.
                found = jax.block_until_ready(restored["state"]), restored["meta"]
                _require_description(found[1])
            except Exception as error:  # whatever a damaged file makes Orbax raise
                if jax.process_count() > 1:
                    write_atomically(self._note(step), _first_line(error) + "\n")
                    raise RunStopped(
                        f"checkpoint {self._directory / str(step)} cannot be read ({_first_line(error)}): run the same "
                        "command again, which sets it aside and goes on from the one before."
                    ) from error
                damaged[step] = error
                continue
            if found[1].get("fingerprint", _UNKNOWN) not in (_UNKNOWN, fingerprint(found[0])):
                damaged[step] = ValueError("its numbers are not what was saved")
                continue
            for damaged_step, reason in damaged.items():
                self._set_aside(damaged_step, reason)
            return found
        if damaged:
            raise InputError(
                f"no checkpoint in {self._directory} can be read ({_first_line(damaged[max(damaged)])}): repair it, "
                "choose another workdir, or pass --overwrite to start anew."
            )
        return None

    def latest_meta(self) -> dict[str, Any] | None:
        """Of the latest checkpoint whose description can be read, without its arrays."""
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                meta = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
                if meta["digest"] == _digest(meta):
                    return meta
            except Exception as error:  # damaged: `restore` says so
                log.debug("checkpoint %d: %s", step, error)
        return None

    def close(self) -> None:
        """Ends the threads that write; what they have begun is left to them."""
        self._manager.close()

    def _note(self, step: int) -> pathlib.Path:
        """Says that a process could not read a checkpoint."""
        return self._directory / f"{step}.unreadable"

    def _set_aside_what_was_noted(self) -> None:
        steps = sorted(self._manager.all_steps())
        noted = distributed.on_first(lambda: [step for step in steps if self._note(step).exists()])
        for step in noted:
            if len(noted) < len(steps):
                self._set_aside(step, OSError("a process could not, in the attempt before"))
            if distributed.is_first():
                self._note(step).unlink()

    def _set_aside(self, step: int, error: Exception) -> None:
        source = self._directory / str(step)
        names = (f"{step}.damaged{suffix}" for suffix in itertools.chain([""], (f".{i}" for i in itertools.count(1))))
        target = next(self._directory / name for name in names if not (self._directory / name).exists())
        if distributed.is_first():
            log.warning(
                "checkpoint %s cannot be read (%s); it is kept as %s and the previous one is used.",
                source,
                _first_line(error),
                target.name,
            )
            os.replace(source, target)
        distributed.barrier(f"set aside {step}")
        self._manager.reload()


def _waiting_for_storage() -> ocp.options.AsyncOptions:
    """How long Orbax waits for files to be written, which it measures by a clock that may be set, by years.

    One process waits for as long as its storage takes. Of several, those whose storage answers must not wait for one
    whose storage does not.
    """
    if jax.process_count() > 1:
        return ocp.options.AsyncOptions()
    # Directories made in the background would be waited for with a time limit that cannot be chosen.
    return ocp.options.AsyncOptions(timeout_secs=10**9, create_directories_asynchronously=False)


def fingerprint(state: Any) -> list[int]:
    """A number below 2^32 for every array, in the tree's order, that any change of a single bit changes.

    ``sum_i (2 i + 1) b_i mod 2^32`` over the array's elements ``b_i`` as integers: exact, so that it does not depend on
    how the array is split over devices. A flipped bit changes it by an odd number times a power of two below 2^32.
    """
    return [int(number) for number in jax.device_get(_fingerprints(jax.tree.leaves(state)))]


@jax.jit
def _fingerprints(leaves: list[jax.Array]) -> list[jax.Array]:
    return [_fingerprint(leaf) for leaf in leaves]


@jax.jit  # parameters and their optimizer's states have the same shapes, and are traced once
def _fingerprint(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    # Numbers of 64 bits become two of 32, along a new last axis.
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}")).astype(jnp.uint32)
    place = jnp.zeros(bits.shape, jnp.uint32)
    for axis in range(bits.ndim):  # no reshape, which would gather a split array
        stride = math.prod(bits.shape[axis + 1 :]) % 2**32
        place += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride)
    return jnp.sum((2 * place + 1) * bits, dtype=jnp.uint32)


def _is_json(path: pathlib.Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True


def _digest(meta: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in meta.items() if name != "digest"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _require_description(meta: Mapping[str, Any]) -> None:
    # Earlier versions wrote neither.
    if ("digest" in meta or "fingerprint" in meta) and meta.get("digest") != _digest(meta):
        raise ValueError("its description is not what was saved")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
