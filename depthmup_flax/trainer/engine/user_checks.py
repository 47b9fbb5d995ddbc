"""What a config may say about the user's own code; each check raises `InputError`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config, field_paths, get_field
from depthmup_flax.data import Dataset
from depthmup_flax.data.user_data import UserDataset
from depthmup_flax.storage.records.table import CONTINUOUS
from depthmup_flax.trainer.engine.user_network import UserNetwork
from depthmup_flax.util.errors import InputError

# Sections of which a training step of the user's own reads the numbers of `CONTINUOUS` alone.
_OF_NETWORKS = ("optimizer", "loss")
_OF_RULE_IN_MODEL = ("branch_multiplier", "gamma0")


def require_no_hyper(config: ConfigDict) -> None:
    """Only a training step of the user's own reads ``config.hyper``."""
    if names := sorted(config.hyper):
        raise InputError(
            f"hyper.{names[0]} is {config.hyper[names[0]]}: only a dm.Task reads it, and model.name is "
            f"{config.model.name!r}. Remove it."
        )


def require_only_hyper(config: ConfigDict) -> None:
    """A training step of the user's own has its optimizer and its loss."""
    default = default_config(config.model.name)
    for path in field_paths(default):
        section = path.partition(".")[0]
        if section in _OF_NETWORKS and path not in CONTINUOUS and get_field(config, path) != get_field(default, path):
            raise InputError(
                f"{path} is {get_field(config, path)!r}: {config.model.name} has a training step of its own, which "
                f"reads only numbers in hyper. Leave it at {get_field(default, path)!r}."
            )
    if config.train.accumulate != 1 or config.train.log_norms:
        field = "log_norms" if config.train.log_norms else "accumulate"
        raise InputError(
            f"train.{field} is {config.train[field]}: {config.model.name} has a training step of its own, to which "
            "this does not apply. Leave it out."
        )


def require_read(config: ConfigDict, read: Collection[str], paths: Collection[str] = ()) -> None:
    """A training step of the user's own reads every number that is set, and those that a sweep varies."""
    default = default_config(config.model.name)
    changed = [path for path in CONTINUOUS if get_field(config, path) != get_field(default, path)]
    for path in [*(f"hyper.{name}" for name in config.hyper), *changed, *paths]:
        if path != "optimizer.learning_rate" or path in paths:
            _require_one_read(config, path, read)


def _require_one_read(config: ConfigDict, path: str, read: Collection[str]) -> None:
    name = path.rpartition(".")[2]
    if name not in read:
        raise InputError(
            f"{path} is {get_field(config, path)}, but {config.model.name} does not read hyper[{name!r}]; it reads "
            f"{', '.join(sorted(read)) or 'nothing'}. Read it, or leave it out."
        )


def require_rule(config: ConfigDict, network: UserNetwork) -> None:
    """A model that is not given the rule cannot apply multipliers that are set."""
    for name in _OF_RULE_IN_MODEL:
        value = config.parametrization[name]
        if value is not None and not network.takes_rule:
            raise InputError(
                f"parametrization.{name} is {value}: {config.model.name} does not take the rule, so that it cannot "
                "apply it. Give it a field or parameter rule, and use rule.residual_multiplier and "
                "rule.readout_multiplier there."
            )


def require_data_parallel(config: ConfigDict) -> None:
    """The parameters of the user's code are not split."""
    for axis in ("fsdp", "tensor"):
        if config.mesh[axis] not in (1, -1):
            raise InputError(
                f"mesh.{axis} is {config.mesh[axis]}: the parameters of {config.model.name} are not split over "
                f"devices. Use mesh.{axis}=1 and mesh.data=-1."
            )


def require_labels(dataset: Dataset, outputs: Any) -> None:
    """The labels of a user's data are classes of the outputs, of whose shapes this is a tree; for cross-entropy."""
    if not isinstance(dataset, UserDataset) or not dataset.num_classes or not getattr(outputs, "shape", ()):
        return
    lowest, highest, classes = dataset.lowest_target, dataset.num_classes - 1, outputs.shape[-1]
    if lowest < 0 or highest >= classes:
        raise InputError(
            f"loss is 'cross_entropy': the labels run from {lowest} to {highest}, and the network returns {classes} "
            f"outputs, for labels 0 to {classes - 1}. Change the data or the network; num_classes is passed to one "
            "that takes it."
        )


def abstract_batch(config: ConfigDict, dataset: Dataset) -> Any:
    """Shapes of a prepared training batch."""
    size = config.train.batch_size
    one = dataset.train.read(np.arange(1))
    batch = {name: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for name, x in one.items()}
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(lambda key, batch: dataset.prepare(config.data.augment, key, batch), key, batch)
