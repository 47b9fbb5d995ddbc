"""The checkpoints of a run: where it resumes, when its state may be saved, and what is stored with it."""

from __future__ import annotations

import json
import logging
import pathlib
from collections.abc import Callable

from depthmup_flax.config import fields as configs
from depthmup_flax.devices.replicas import require_equal_copies
from depthmup_flax.rule.info_trees import info_to_json
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.workload import TrainState, is_finite
from depthmup_flax.trainer.runs.checkpoint import Checkpointer
from depthmup_flax.trainer.runs.directory import require_same_data
from depthmup_flax.util.errors import InputError, RunStopped
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)


class RunCheckpoints:
    """Restores a run, and saves its finite states, if ``train.checkpoint`` is set.

    Args:
      experiment: what is trained.
      data: its data, from `depthmup_flax.data.stored_dataset.to_json`.
      directory: of the checkpoints; need not exist.

    Attributes:
      finite: whether the state, and if a loss that is not ends the run, all losses were finite at the last `save`.
    """

    def __init__(self, experiment: Experiment, data: Json, directory: pathlib.Path) -> None:
        self._experiment, self._data, self._directory = experiment, data, directory
        self._train = experiment.config.train
        self.finite = True
        self._checkpointer: Checkpointer | None = None
        # A run that has checkpoints resumes from them even if it writes no more.
        if self._train.checkpoint or directory.exists():
            self._checkpointer = Checkpointer(directory, self._train.keep_checkpoints)

    def restore(self, abstract_state: TrainState) -> tuple[TrainState, Json] | None:
        """The latest state and its description; ``None`` if there is no checkpoint.

        Raises:
          InputError: it is of another config or other data, or every checkpoint is damaged.
        """
        if self._checkpointer is None:
            return None
        if (latest := self._checkpointer.latest_meta()) is not None:  # before arrays of other shapes are asked for
            self._require_same_run(latest)
        return self._checkpointer.restore(abstract_state)

    def _require_same_run(self, meta: Json) -> None:
        if configs.run_differences(meta["config"], json.loads(configs.to_json(self._experiment.config))):
            raise InputError(
                f"the checkpoints in {str(self._directory.parent)!r} belong to another config: choose another workdir, "
                "or set overwrite to delete them."
            )
        require_same_data(meta.get("data", {}), self._data, f"the run in {str(self._directory.parent)!r}")

    def save(
        self, state: TrainState, elapsed_s: float, test: dict[str, float] | None, first: Callable[[], None]
    ) -> None:
        """Writes a checkpoint, evaluated as ``test``, in the background, unless it exists or the state is not finite.

        Calls ``first`` before.

        Raises:
          RunStopped: copies of the state on several devices differ.
        """
        step = int(state.step)
        if self._checkpointer is None or not self._train.checkpoint or step <= self._checkpointer.latest_step:
            return
        if self._train.compare_replicas:  # first: the next answer must be the same everywhere
            try:
                require_equal_copies(state)
            except RunStopped:
                self.wait()  # the last one with equal copies may still be being written
                raise
        self.finite = bool(is_finite(self._experiment.workload.task, state))
        if self._train.stop_on_divergence:
            self.finite = self.finite and int(state.nonfinite_step) < 0
        elif not self.finite:
            log.warning("step %d: the state is not finite, so no checkpoint is written.", step)
        if not self.finite:
            return
        meta = {
            "config": json.loads(configs.to_json(self._experiment.config)),
            "data": self._data,
            "param_info": info_to_json(self._experiment.info),
            "data_position": step * self._train.batch_size,  # examples read since step 0
            "elapsed_s": elapsed_s,
            "evaluated": test is not None,
        }
        first()
        self._checkpointer.save(step, state, meta, test or None)

    def latest(self) -> pathlib.Path | None:
        """The latest checkpoint, which is finite."""
        step = -1 if self._checkpointer is None else self._checkpointer.latest_step
        return None if step < 0 else self._directory / str(step)

    def check(self) -> None:
        """Raises the error that ended a save in the background, if there is one."""
        if self._checkpointer is not None:
            self._checkpointer.check()

    def wait(self) -> None:
        """Returns when all checkpoints are on disk."""
        if self._checkpointer is not None:
            self._checkpointer.wait()

    def close(self) -> None:
        """Ends the background threads, after what they are writing."""
        if self._checkpointer is not None:
            self._checkpointer.close()
