"""A trained network as one safetensors file, which other frameworks read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import jax
import numpy as np

from depthmup_flax.config import fields as configs
from depthmup_flax.models.base import ResidualNetwork
from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.storage.workdir.buckets import is_bucket
from depthmup_flax.storage.workdir.directory import as_path
from depthmup_flax.storage.workdir.files import read_json, write_atomically
from depthmup_flax.trainer.runs.saved_run import RESTORE
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.extras import require
from depthmup_flax.util.types import Json
from depthmup_flax.util.version import __version__

if TYPE_CHECKING:
    from depthmup_flax.trainer.runs.trained import TrainedRun


def write(run: TrainedRun, path: str | os.PathLike[str]) -> None:
    """Writes arrays by path, as in ``params.txt``, and a description as metadata; see `TrainedRun.save_safetensors`."""
    require("safetensors", "save_safetensors")
    from safetensors.numpy import save

    file = as_path(path)
    if not is_bucket(file) and file.is_dir():
        raise InputError(f"path is {str(path)!r}, a directory: name a file, such as {str(file / 'net.safetensors')!r}.")
    if not is_bucket(file) and not file.parent.is_dir():
        raise InputError(f"path is {str(path)!r}: there is no directory {str(file.parent)!r}. Create it.")
    leaves = [leaf for tree in (run.params, run.collections) for leaf in jax.tree_util.tree_leaves_with_path(tree)]
    arrays = {path_name(place): np.asarray(array, order="C") for place, array in leaves}
    write_atomically(file, save(arrays, metadata={"depthmup_flax": json.dumps(_description(run))}))


def _description(run: TrainedRun) -> Json:
    description = {
        "config": json.loads(configs.to_json(run.config)),
        "config_hash": configs.config_hash(run.config),
        "data": read_json(run.directory / "data.json", RESTORE),
        "step": run.step,
        "version": __version__,
    }
    if isinstance(run.model, ResidualNetwork):  # a user's network has its multipliers in its code
        description["multipliers"] = run.model.multipliers
    return description
