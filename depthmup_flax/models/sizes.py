"""Checks that every model makes on its sizes before anything is traced."""

from __future__ import annotations

import numbers
from collections.abc import Collection
from typing import Any

import jax.numpy as jnp

from depthmup_flax.errors import InputError, did_you_mean
from depthmup_flax.nn.layers import REMAT
from depthmup_flax.rule.parametrization import Parametrization


def require_choice(model: Any, name: str, choices: Collection[str]) -> None:
    """``model.<name>`` must be one of ``choices``."""
    value = getattr(model, name)
    if value not in choices:
        raise InputError(f"model.{name} is {value!r}: {did_you_mean(str(value), choices)}")


def require_dropout(model: Any) -> None:
    """``model.dropout`` must be a probability below 1."""
    value = model.dropout
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise InputError(f"model.dropout is {value!r}: use a probability of at least 0 and below 1.")


def require_sizes(model: Any, *names: str, or_zero: tuple[str, ...] = ()) -> None:
    """``model.<name>`` must be a positive whole number; ``base_*`` and ``or_zero`` may be 0 (not set).

    What all models have is looked at as well: the rule, ``remat`` and the dtypes.
    """
    require_choice(model, "remat", REMAT)
    if not isinstance(model.parametrization, Parametrization):
        raise InputError(f"model.parametrization is {model.parametrization!r}: use get_parametrization(name).")
    for name in ("dtype", "param_dtype"):
        value = getattr(model, name)
        try:
            jnp.dtype(jnp.float32 if value is None else value)
        except TypeError as error:
            raise InputError(f"model.{name} is {value!r}: use 'float32', 'bfloat16' or 'float16'.") from error
    or_zero = (*or_zero, "base_width", "base_depth")
    for name in (*names, *or_zero):
        value = getattr(model, name)
        lowest = 0 if name in or_zero else 1
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < lowest:
            allowed = "a positive whole number, or 0 for the model's own" if lowest == 0 else "a positive whole number"
            raise InputError(f"model.{name} is {value!r}: use {allowed}.")
