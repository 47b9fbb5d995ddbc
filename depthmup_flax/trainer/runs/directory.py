"""The run that a work directory holds: whether it is that of a config, its data and checkpoints, its deletion."""

from __future__ import annotations

import json
import logging
import pathlib
from collections.abc import Callable

from ml_collections import ConfigDict

from depthmup_flax.config import fields as configs
from depthmup_flax.config.fields import ANOTHER, to_json
from depthmup_flax.data import ImageDataset, TextDataset, UserDataset, stored_dataset
from depthmup_flax.devices.equal_copies import require_equal_copies
from depthmup_flax.rule.info_trees import info_to_json
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import delete_tree, read_json, reading
from depthmup_flax.storage.run_hash import run_differences
from depthmup_flax.trainer.engine import identity
from depthmup_flax.trainer.engine.device_batches import consumed
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.task import TrainState, is_finite
from depthmup_flax.trainer.runs.checkpoint import Checkpointer, saved_steps
from depthmup_flax.util.errors import InputError, RunStopped, listed
from depthmup_flax.util.types import Json

log = logging.getLogger(__name__)

DATA = "data.json"
RESTORE = "restore the file, or name another run"  # the remedy for a file that is missing or damaged
GARBLED = "delete it, or set overwrite to restart the run"  # the remedy for a file that is not JSON


def require_run(path: pathlib.Path) -> None:
    """Raises `InputError` unless a directory holds a run that has started."""
    remedy = "name the workdir of a training run, such as runs/digits. depthmup report reads a sweep"
    workdirs.require_kind(path, workdirs.RUN, remedy)
    if not (path / "config.json").exists():
        raise InputError(f"the run in {str(path)!r} has saved nothing yet: wait for its first checkpoint.")


def chosen_step(path: pathlib.Path, which: str | int, config: ConfigDict) -> int:
    """The step of the checkpoint that ``which`` means."""
    steps = saved_steps(path / "checkpoints")
    if not steps:
        ended = path / "result.json"
        if ended.exists():
            with reading(ended, RESTORE):
                after = read_json(ended, RESTORE)["diverged_at_step"]
            if after is not None:
                raise InputError(
                    f"the run in {str(path)!r} diverged at step {after}, before its first checkpoint: lower "
                    "optimizer.learning_rate and train again, with overwrite or another workdir."
                )
        remedy = "train again with train.checkpoint=True"
        if config.train.checkpoint:
            remedy = "wait for its first evaluation, or set train.checkpoint_every"
        raise InputError(f"the run in {str(path)!r} has saved no checkpoint yet: {remedy}.")
    step = steps[-1] if which == "latest" else which
    if step not in steps:
        raise InputError(f"which is {which!r}: use 'latest' or a saved step: {', '.join(map(str, steps))}.")
    return int(step)


def stored_data(path: pathlib.Path) -> ImageDataset | TextDataset | UserDataset:
    """What the network reads, as the run has stored it."""
    stored = path / DATA
    if not stored.exists():
        raise InputError(f"{str(path)!r} has no data.json: {RESTORE}.")
    with reading(stored, RESTORE):
        return stored_dataset.from_json(read_json(stored, RESTORE))


def prepare(directory: pathlib.Path, config: ConfigDict, data: Json, programs: Json, *, overwrite: bool) -> None:
    """Deletes the run in a claimed directory if ``overwrite``; else `InputError` if it has other config, data, code."""
    if overwrite:
        _delete(directory)
    if (directory / "result.json").exists() or saved_steps(directory / "checkpoints"):
        for name in ("config.json", DATA):
            if not (directory / name).exists():
                raise InputError(f"{str(directory)!r} holds a run without its {name}: restore it, or set overwrite.")
    stored, holds = directory / "config.json", f"workdir {str(directory)!r} holds a run"
    if stored.exists():
        before, now = read_json(stored, GARBLED), json.loads(to_json(config))
        with reading(stored, GARBLED):
            differing = identity.code_differences(directory, before, now, programs) + run_differences(before, now)
        if differing:
            raise InputError(f"{holds} with another config ({listed(differing)}): {ANOTHER}")
        path = directory / DATA
        before = read_json(path, GARBLED) if path.exists() else {}
        stored_dataset.require_same(before, data, f"the run in {str(directory)!r}")
    compare = stored.exists() and not config.train.same_code
    identity.require_same(directory, programs, holds, compare=compare)


def _delete(directory: pathlib.Path) -> None:
    delete_tree(directory / "checkpoints")
    for events in directory.glob("events.out.tfevents.*"):
        events.unlink()
    # config.json protects the other files, so it is deleted last.
    files = "result.json metrics.jsonl data.json params.txt wandb.json"
    for name in (*files.split(), identity.FILE, "config.json"):
        (directory / name).unlink(missing_ok=True)


class RunCheckpoints(Checkpointer):
    """Restores a run, also without ``train.checkpoint``, and saves its finite states if that is set.

    Attributes:
      finite: whether the state and all losses were finite at the last `save_finite`.
    """

    def __init__(self, experiment: Experiment, directory: pathlib.Path) -> None:
        super().__init__(directory, experiment.config.train.keep_checkpoints)
        self._experiment, self.finite = experiment, True

    def save_finite(self, state: TrainState, elapsed_s: float, *, evaluated: bool, first: Callable[[], None]) -> None:
        """Calls ``first`` and writes a checkpoint in the background, unless it exists or the state is not finite."""
        step, train = int(state.step), self._experiment.config.train
        if not train.checkpoint or step <= self.latest_step:
            return
        if train.compare_replicas:  # first: the next answer must be the same everywhere
            try:
                require_equal_copies(state)
            except RunStopped:
                self.wait()  # the last one with equal copies may still be being written
                raise
        self.finite = bool(is_finite(self._experiment.task, state)) and int(state.nonfinite_step) < 0
        if not self.finite:
            return
        meta = {
            "config": json.loads(configs.to_json(self._experiment.config)),
            "param_info": info_to_json(self._experiment.info),
            "data_position": step * train.batch_size,  # examples read since step 0
            "batches": consumed(self._experiment.dataset, [self._experiment.config.seed], step),
            "elapsed_s": elapsed_s,
            "evaluated": evaluated,
        }
        first()
        self.save(step, state, meta)

    def latest(self) -> pathlib.Path | None:
        """The latest checkpoint, which is finite."""
        return None if self.latest_step < 0 else self._directory / str(self.latest_step)
