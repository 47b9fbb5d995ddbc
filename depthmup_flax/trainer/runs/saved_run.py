"""What a directory must hold to be a run that can be read."""

from __future__ import annotations

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.data import ImageDataset, TextDataset, UserDataset, stored_dataset
from depthmup_flax.storage.workdir import directory as workdirs
from depthmup_flax.storage.workdir.files import read_json
from depthmup_flax.trainer.runs.checkpoint import best_step, saved_steps
from depthmup_flax.util.errors import InputError

RESTORE = "restore the file, or name another run"  # the remedy for a file that is missing or damaged


def require_run(path: pathlib.Path) -> None:
    """Raises `InputError` unless a directory holds a run that has started."""
    remedy = "name the --workdir of a training run, such as runs/digits. depthmup report reads a sweep"
    workdirs.require_kind(path, workdirs.RUN, remedy)
    if not (path / "config.json").exists():
        raise InputError(f"the run in {str(path)!r} has saved nothing yet: wait for its first checkpoint.")


def chosen_step(path: pathlib.Path, which: str | int, config: ConfigDict) -> int:
    """The step of the checkpoint that ``which`` means."""
    steps = saved_steps(path / "checkpoints")
    if not steps:
        remedy = "train again with train.checkpoint=True"
        if config.train.checkpoint:
            remedy = "wait for its first evaluation, or set train.checkpoint_every"
        raise InputError(f"the run in {str(path)!r} has saved no checkpoint yet: {remedy}.")
    if which == "latest":
        return steps[-1]
    if which == "best":
        best = best_step(path / "checkpoints")
        if best is None:
            raise InputError(f"no checkpoint in {str(path)!r} was evaluated: use which='latest'.")
        return best
    if which in steps:
        return int(which)
    raise InputError(f"which is {which!r}: use 'latest', 'best' or a saved step: {', '.join(map(str, steps))}.")


def stored_data(path: pathlib.Path) -> ImageDataset | TextDataset | UserDataset:
    """What the network reads, as the run has stored it."""
    stored = path / "data.json"
    if not stored.exists():
        raise InputError(f"{str(path)!r} has no data.json: {RESTORE}.")
    try:
        return stored_dataset.from_json(read_json(stored, RESTORE))
    except (KeyError, TypeError) as error:
        raise InputError(f"{stored} lacks {error}: {RESTORE}.") from error
