"""Checks that every model makes on its sizes before anything is traced."""

from __future__ import annotations

import numbers
from typing import Any

from depthmup_flax.errors import InputError


def require_sizes(model: Any, *names: str) -> None:
    """``model.<name>`` must be a positive whole number, ``base_width`` and ``base_depth`` that or 0 (no base)."""
    for name in (*names, "base_width", "base_depth"):
        value = getattr(model, name)
        lowest = 0 if name.startswith("base_") else 1
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < lowest:
            allowed = "a positive whole number, or 0 for this model's own" if lowest == 0 else "a positive whole number"
            raise InputError(f"model.{name} is {value!r}: use {allowed}.")
