"""The run that a work directory holds: whether it is that of a config, and how it is deleted."""

from __future__ import annotations

import json
import pathlib

from ml_collections import ConfigDict

from depthmup_flax.config.fields import listed, require_same_circumstances, run_differences, to_json
from depthmup_flax.data import stored_dataset
from depthmup_flax.storage.workdir.files import create, delete_tree, read_json
from depthmup_flax.storage.workdir.seal import sealed
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Json

_DATA = "data.json"
GARBLED = "delete it, or pass --overwrite to restart the run"  # the remedy for a file that is not JSON


def prepare(directory: pathlib.Path, config: ConfigDict, data: Json, *, overwrite: bool) -> None:
    """Deletes the run in a claimed directory if ``overwrite``, or checks that it is the run of ``config`` and ``data``.

    Raises:
      InputError: its ``config.json`` or its data differ; the sentence lists in what.
    """
    if overwrite:
        _delete(directory)
    stored = directory / "config.json"
    if stored.exists():
        before, now = read_json(stored, GARBLED), json.loads(to_json(config))
        require_same_circumstances(before, now, f"workdir {str(directory)!r} holds a run")
        differing = run_differences(before, now)
        if differing:
            raise InputError(
                f"workdir {str(directory)!r} holds a run with another config ({listed(differing)}): "
                "choose another directory, or pass --overwrite to delete that run."
            )
        path = directory / _DATA
        require_same_data(read_json(path, GARBLED) if path.exists() else {}, data, f"the run in {str(directory)!r}")
    checkpoints = directory / "checkpoints"
    if checkpoints.exists() and not checkpoints.is_dir():
        raise InputError(f"{str(checkpoints)!r} is a file: remove it, because checkpoints go there.")


def require_same_data(stored: Json, data: Json, work: str) -> None:
    """Raises `InputError` if data, as they were stored and as they are, differ.

    Both are from `depthmup_flax.data.stored_dataset.to_json`. ``work`` is for the sentence: "the run in 'runs/mine'".
    """
    if changed := stored_dataset.changes(stored, data):
        raise InputError(
            f"data.name is {data['name']!r}: its data have changed since {work} began "
            f"({changed}). Restore them to resume, choose another workdir, or pass --overwrite to start again."
        )


def write_data(directory: pathlib.Path, data: Json) -> None:
    """Writes the description of a run's data, unless the run has it: what was trained on stays as it was."""
    create(directory / _DATA, sealed(json.dumps(data) + "\n"))


def _delete(directory: pathlib.Path) -> None:
    """Deletes the files of a run, and no others."""
    delete_tree(directory / "checkpoints")
    for events in directory.glob("events.out.tfevents.*"):
        events.unlink()
    # config.json protects the other files, so it is deleted last.
    files = "result.json sample.txt metrics.jsonl data.json params.txt wandb.json config.json"
    for name in files.split():
        (directory / name).unlink(missing_ok=True)
