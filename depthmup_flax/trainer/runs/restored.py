"""The model of a run, and what it carried, from the numbers of a checkpoint."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import make_parametrization
from depthmup_flax.config.user_code import code_of
from depthmup_flax.data import Dataset, UserDataset
from depthmup_flax.models import create_model
from depthmup_flax.networks.model_functions import ModelFunctions
from depthmup_flax.networks.named import is_import_path
from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.trainer.engine.experiment import hyperparameters
from depthmup_flax.trainer.engine.network import our_functions
from depthmup_flax.trainer.engine.task import Task
from depthmup_flax.trainer.engine.user_network import UserNetwork
from depthmup_flax.trainer.engine.user_task import restored_state
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, Json

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Restored:
    """What is made of a checkpoint.

    Attributes:
      model: what ``model.name`` names makes: our Flax module, the user's network, or their `Task`.
      functions: of a network; ``None`` for a `Task`.
      params: of a network; of a `Task` the arrays of its state by path.
      collections: what a network's forward pass updates, such as running averages.
      state: of a `Task`, as its functions see it; else ``None``.
    """

    model: Any
    functions: ModelFunctions | None
    params: ArrayTree
    collections: ArrayTree
    state: Any = None


def training_step(config: ConfigDict, num_classes: int) -> Task | None:
    """The user's training step that ``model.name`` makes; ``None`` if it makes a network."""
    if not is_import_path(config.model.name):
        return None
    return UserNetwork(config.model, num_classes).task(make_parametrization(config))


def restored(config: ConfigDict, data: Dataset, carry: Json) -> Restored:
    """The model of a run of ``config``, with what its step carried.

    Raises:
      InputError: the user's code is not there, or makes another network than that of the checkpoint.
      UserCodeError: it fails.
    """
    rule, name = make_parametrization(config), config.model.name
    if not is_import_path(name):
        model = create_model(num_classes=data.num_classes, parametrization=rule, **config.model)
        return Restored(model, our_functions(model), carry["params"], carry.get("collections", {}))
    network = UserNetwork(config.model, data.num_classes)
    if (task := training_step(config, data.num_classes)) is not None:
        return Restored(task, None, carry, {}, restored_state(task, name, hyperparameters(config), carry))
    functions = network.functions(rule)
    params, collections = functions.shapes(data.input_spec)
    params = _like(params, carry["params"], name)
    collections = _like(collections, carry.get("collections", {}), name)
    return Restored(functions.model(params, collections), functions, params, collections)


def warn_of_changes(config: ConfigDict, stored: Mapping[str, str]) -> None:
    """Warns of modules whose code is not that of ``stored``, module -> digest."""
    now = code_of(config)
    if changed := sorted(name for name in stored.keys() & now.keys() if stored[name] != now[name]):
        log.warning("the code of %s has changed since the run: its outputs may differ.", ", ".join(changed))


def _like(shapes: ArrayTree, arrays: ArrayTree, name: str) -> ArrayTree:
    """``arrays``, nested dictionaries, in the structure of ``shapes``."""
    stored = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)}
    flat, structure = jax.tree_util.tree_flatten_with_path(shapes)
    wanted = {path_name(path): leaf.shape for path, leaf in flat}
    for path, shape in wanted.items():
        if path not in stored or stored[path].shape != shape:
            has = f"{path} of shape {list(stored[path].shape)}" if path in stored else f"no {path}"
            raise InputError(
                f"model.name is {name!r}: it now makes {path} of shape {list(shape)}, and the run has {has}. Restore "
                "the code of the run."
            )
    return jax.tree.unflatten(structure, [stored[path] for path in wanted])


def checked_inputs(inputs: Any, data: UserDataset) -> Any:
    """Inputs [B, ...] as ``data`` gives them to the network, as NumPy arrays of its types; else `InputError`."""
    specs, structure = jax.tree.flatten(data.inputs)
    try:
        given = jax.tree.leaves(jax.tree.map(lambda _, part: np.asarray(part), data.inputs, inputs))
    except ValueError as error:
        raise InputError(
            f"the inputs are {type(inputs).__name__}: the network reads {data.inputs}, with a leading axis B."
        ) from error
    for array, spec in zip(given, specs, strict=True):
        wanted = ", ".join(["B", *map(str, spec.shape)])
        if array.shape[1:] != spec.shape or not array.ndim:
            hint = "Add the axis B, inputs[None]." if array.shape == spec.shape else "Prepare them as for training."
            raise InputError(f"inputs have shape {list(array.shape)}: the network reads [{wanted}]. {hint}")
        if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
            raise InputError(
                f"inputs are {array.dtype}: the network reads {spec.dtype}[{wanted}]. Prepare them as for training."
            )
    if len({len(array) for array in given}) > 1:
        raise InputError(f"inputs have {[len(array) for array in given]} examples: give equally many in each part.")
    return jax.tree.unflatten(structure, [x.astype(spec.dtype) for x, spec in zip(given, specs, strict=True)])
