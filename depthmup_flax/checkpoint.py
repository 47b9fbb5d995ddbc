"""Checkpoints by Orbax: the training state, and beside it what it means (config, parameter roles, data position)."""

from __future__ import annotations

import itertools
import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from depthmup_flax.errors import InputError

log = logging.getLogger(__name__)


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
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([latest, best]),
            best_fn=accuracy,  # makes Orbax write the metrics, so that the best is still known after a restart
            cleanup_tmp_directories=True,
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options, item_names=("state", "meta"))

    def save(self, step: int, state: Any, meta: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Copies ``state`` off the devices and returns; the files appear, atomically, a little later.

        Args:
          step: of the training; must be above every saved one.
          state: pytree of arrays.
          meta: JSON: what the arrays mean.
          metrics: with ``test_accuracy``, which selects the best.
        """
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(dict(meta)))
        if not self._manager.save(step, args=items, metrics=dict(metrics), force=True):
            raise RuntimeError(f"checkpoint {step} was not written: {self._directory} holds a later one.")

    def restore(self, abstract_state: Any) -> tuple[Any, dict[str, Any]] | None:
        """State and meta of the latest checkpoint that can be read, or ``None`` if there is none.

        A damaged one, behind which an older one can be read, is renamed to ``<step>.damaged`` and a warning says so.

        Args:
          abstract_state: pytree of ``jax.ShapeDtypeStruct`` with shardings, as the state will be used.

        Raises:
          InputError: there are checkpoints, and none can be read. Nothing is renamed then.
        """
        damaged: dict[int, Exception] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state), meta=ocp.args.JsonRestore())
            try:
                restored = self._manager.restore(step, args=items)
                # A lazily read file may fail only now.
                state, meta = jax.block_until_ready(restored["state"]), restored["meta"]
            except Exception as error:  # whatever a damaged file makes Orbax raise
                damaged[step] = error
                continue
            for damaged_step, reason in damaged.items():
                self._set_aside(damaged_step, reason)
            return state, meta
        if damaged:
            raise InputError(
                f"no checkpoint in {self._directory} can be read ({_first_line(damaged[max(damaged)])}): repair it, "
                "choose another workdir, or pass --overwrite to start anew."
            )
        return None

    def close(self) -> None:
        """Waits for writing to end."""
        self._manager.wait_until_finished()
        self._manager.close()

    def _set_aside(self, step: int, error: Exception) -> None:
        source = self._directory / str(step)
        names = (f"{step}.damaged{suffix}" for suffix in itertools.chain([""], (f".{i}" for i in itertools.count(1))))
        target = next(self._directory / name for name in names if not (self._directory / name).exists())
        log.warning(
            "checkpoint %s cannot be read (%s); it is kept as %s and the previous one is used.",
            source,
            _first_line(error),
            target.name,
        )
        if jax.process_index() == 0:
            os.replace(source, target)
        self._manager.reload()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
