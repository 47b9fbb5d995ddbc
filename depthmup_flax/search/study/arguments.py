"""The arguments of a Study as names and numbers that a config holds."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.auditing.parameter_trees import flatten, shape_of
from depthmup_flax.config.user_code import PYTHON
from depthmup_flax.data.registry import find_source
from depthmup_flax.networks.named import register
from depthmup_flax.rule.directions import direction_factory
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.search.sweep.grid import as_tuple
from depthmup_flax.storage.records import CONTINUOUS
from depthmup_flax.trainer.engine.losses import named_loss
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree


def model_name(build: Any) -> str:
    """``config.model.name`` for a name, an import path, a class or a function."""
    if isinstance(build, str):
        return build
    if not (inspect.isclass(build) or inspect.isroutine(build) or isinstance(build, functools.partial)):
        raise InputError(
            f"build is {type(build).__name__}: it must be a class, or a function of width and depth that returns a "
            "network, such as lambda width, depth: Net(width, depth)."
        )
    return register(build, "build")


def loss_name(loss: Any) -> str:
    """``config.loss`` for a name, an import path or a function."""
    if not (isinstance(loss, str) or callable(loss)):
        raise InputError(f"loss is {loss!r}: use 'cross_entropy', 'squared_error', or a function (outputs, targets).")
    return loss if isinstance(loss, str) else register(loss, "loss")


def data_name(data: Any) -> str:
    """``config.data.name`` for a name, splits, or a function that returns them."""
    if isinstance(data, str):
        return data
    if isinstance(data, (tuple, list)) and len(data) in (2, 4) and all(hasattr(part, "dtype") for part in data):
        raise InputError(
            f"data has {len(data)} arrays: it must be (train, test), such as ((x_train, y_train), (x_test, y_test))."
        )
    if not (callable(data) or (isinstance(data, (tuple, list)) and len(data) in (2, 3))):
        raise InputError(
            f"data is {type(data).__name__}: it must be (train, test), (train, test, prepare), a function that returns "
            "it, or a name, such as 'digits'."
        )
    return PYTHON + register(data, "data")


def require_names(config: ConfigDict) -> None:
    """Raises `InputError` unless there are such an optimizer, such a loss and such data, which are not loaded."""
    if config.optimizer.name != "muon":
        direction_factory(config.optimizer.name)
    named_loss(config.loss, model=None)
    find_source(config.data.name)


def checked_hyper(hyper: Mapping[str, float]) -> dict[str, float]:
    """``config.hyper``; `InputError` for a name of another field, or what is no number."""
    if not isinstance(hyper, Mapping):
        raise InputError(f"hyper is {hyper!r}: use a dictionary of numbers, such as {{'temperature': 0.1}}.")
    own = {path.rpartition(".")[2]: path for path in CONTINUOUS}
    for name, value in hyper.items():
        if name in own:
            raise InputError(f"hyper has {name!r}, the name of {own[name]}: give it to the study as {name}=VALUE.")
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise InputError(f"hyper[{name!r}] is {value!r}: use a number.")
    return {name: float(value) for name, value in hyper.items()}


def require_same_shapes(params: ArrayTree, infos: InfoTree) -> None:
    """Raises `InputError` unless parameters are those of the network that ``infos`` describe, in its containers."""
    given, known = flatten(params, "params")[0], flatten_info(infos)
    for path in sorted(given.keys() | known.keys()):
        shapes = [shape_of(tree[path]) if path in tree else None for tree in (given, known)]
        if shapes[0] != shapes[1]:
            has, wants = ("no such parameter" if shape is None else f"shape {shape}" for shape in shapes)
            right = "pass new parameters of a network of this width and depth"
            raise InputError(f"params has {has} at {path!r}, and the network {wants}: {right}.")


def size_of(name: str, value: Any) -> int:
    """A width or depth, checked."""
    if isinstance(value, Mapping):
        raise InputError(f"{name} is a {type(value).__name__}: pass hyperparameters as keywords, **best.")
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise InputError(f"{name} is {value!r}: use a whole number of at least 1.")
    return int(value)


def sizes_of(name: str, values: Any) -> tuple[int, ...]:
    """One or several widths, depths or steps, checked."""
    return tuple(size_of(name, value) for value in as_tuple(values))
