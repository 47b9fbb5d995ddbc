"""The arguments of a Study as names and numbers that a config holds."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Mapping
from typing import Any

from depthmup_flax.config.user_code import PYTHON
from depthmup_flax.records.table import CONTINUOUS
from depthmup_flax.user_code.named import register
from depthmup_flax.util.errors import InputError


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
    if not (callable(data) or (isinstance(data, (tuple, list)) and len(data) in (2, 3))):
        raise InputError(
            f"data is {type(data).__name__}: it must be (train, test), (train, test, prepare), a function that returns "
            "it, or a name, such as 'digits'."
        )
    return PYTHON + register(data, "data")


def checked_hyper(hyper: Mapping[str, float]) -> dict[str, float]:
    """``config.hyper``; `InputError` for a name of another field, or what is no number."""
    own = {path.rpartition(".")[2]: path for path in CONTINUOUS}
    for name, value in hyper.items():
        if name in own:
            raise InputError(f"hyper has {name!r}, the name of {own[name]}: give it to the study as {name}=VALUE.")
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise InputError(f"hyper[{name!r}] is {value!r}: use a number.")
    return {name: float(value) for name, value in hyper.items()}


def size_of(name: str, value: Any) -> int:
    """A width or depth, checked."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise InputError(f"{name} is {value!r}: use a whole number of at least 1.")
    return int(value)
