"""Checks that every model makes on its sizes before anything is traced."""

from __future__ import annotations

import numbers
from typing import Any

import jax.numpy as jnp

from depthmup_flax.errors import InputError
from depthmup_flax.parametrization import Parametrization


def require_sizes(model: Any, *names: str) -> None:
    """``model.<name>`` must be a positive whole number; ``base_width`` and ``base_depth`` may be 0 (no base).

    The model's dtypes and its rule are looked at as well.
    """
    if not isinstance(model.parametrization, Parametrization):
        raise InputError(f"model.parametrization is {model.parametrization!r}: use get_parametrization(name).")
    for name in ("dtype", "param_dtype"):
        value = getattr(model, name)
        try:
            jnp.dtype(jnp.float32 if value is None else value)
        except TypeError as error:
            raise InputError(f"model.{name} is {value!r}: use 'float32', 'bfloat16' or 'float16'.") from error
    for name in (*names, "base_width", "base_depth"):
        value = getattr(model, name)
        lowest = 0 if name.startswith("base_") else 1
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < lowest:
            allowed = "a positive whole number, or 0 for this model's own" if lowest == 0 else "a positive whole number"
            raise InputError(f"model.{name} is {value!r}: use {allowed}.")
