"""The run that a work directory holds: whether it is that of a config, and how it is deleted."""

from __future__ import annotations

import json
import pathlib

from ml_collections import ConfigDict

from depthmup_flax.config.fields import listed, require_same_code, run_differences, to_json
from depthmup_flax.util.errors import InputError
from depthmup_flax.workdir.files import delete_tree, read_json

GARBLED = "delete it, or pass --overwrite to restart the run"  # the remedy for a file that is not JSON


def prepare(directory: pathlib.Path, config: ConfigDict, *, overwrite: bool) -> None:
    """Deletes the run in a claimed directory if ``overwrite``, or checks that it is the run of ``config``.

    Raises:
      InputError: its ``config.json`` differs from ``config``; the sentence lists the fields.
    """
    if overwrite:
        _delete(directory)
    stored = directory / "config.json"
    if stored.exists():
        before, now = read_json(stored, GARBLED), json.loads(to_json(config))
        require_same_code(before, now, f"workdir {str(directory)!r} holds a run")
        differing = run_differences(before, now)
        if differing:
            raise InputError(
                f"workdir {str(directory)!r} holds a run with another config ({listed(differing)}): "
                "choose another directory, or pass --overwrite to delete that run."
            )
    checkpoints = directory / "checkpoints"
    if checkpoints.exists() and not checkpoints.is_dir():
        raise InputError(f"{str(checkpoints)!r} is a file: remove it, because checkpoints go there.")


def _delete(directory: pathlib.Path) -> None:
    """Deletes the files of a run, and no others."""
    delete_tree(directory / "checkpoints")
    for events in directory.glob("events.out.tfevents.*"):
        events.unlink()
    # config.json protects the other files, so it is deleted last.
    files = "result.json sample.txt metrics.jsonl data.json params.txt wandb.json config.json"
    for name in files.split():
        (directory / name).unlink(missing_ok=True)
