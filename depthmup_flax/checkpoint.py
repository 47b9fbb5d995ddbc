"""Checkpoints by Orbax: the training state, and beside it what it means (config, parameter roles, data position)."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

log = logging.getLogger(__name__)


class Checkpointer:
    """The latest checkpoints of a run and its best one, written in the background.

    Args:
      directory: created if absent; holds one folder per step.
      keep: how many of the latest to keep. The one with the highest ``test_accuracy`` is kept as well.
    """

    def __init__(self, directory: pathlib.Path, keep: int) -> None:
        self._directory = directory.absolute()
        latest = policies.LatestN(keep)
        best = policies.BestN(
            n=1, get_metric_fn=lambda metrics: metrics["test_accuracy"], keep_checkpoints_without_metrics=False
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([latest, best]), cleanup_tmp_directories=True
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

        A damaged one is renamed to ``<step>.damaged``, which is said in a warning, and the one before it is tried.

        Args:
          abstract_state: pytree of ``jax.ShapeDtypeStruct`` with shardings, as the state will be used.
        """
        for step in sorted(self._manager.all_steps(), reverse=True):
            items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state), meta=ocp.args.JsonRestore())
            try:
                restored = self._manager.restore(step, args=items)
                # A lazily read file may fail only now.
                return jax.block_until_ready(restored["state"]), restored["meta"]
            except Exception as error:  # whatever a damaged file makes Orbax raise
                self._set_aside(step, error)
        return None

    def close(self) -> None:
        """Waits for writing to end."""
        self._manager.wait_until_finished()
        self._manager.close()

    def _set_aside(self, step: int, error: Exception) -> None:
        source = self._directory / str(step)
        target = self._directory / f"{step}.damaged"
        log.warning(
            "checkpoint %s cannot be read (%s); it is kept as %s and the previous one is tried.",
            source,
            str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
            target.name,
        )
        if jax.process_index() == 0:
            os.replace(source, target)
        self._manager.reload()
