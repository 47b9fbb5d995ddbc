"""Checks of a figure's config: every wrong field is one sentence before anything is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.util.errors import InputError
from reproduction.limits.finite_networks import GROUPS


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any, at_least: int = 1) -> bool:
    """Whether ``value`` is a whole number of at least ``at_least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def is_distinct(values: Any, valid: Callable[[Any], bool]) -> bool:
    """Whether ``values`` is a tuple or list of one or more different, valid elements."""
    listed = isinstance(values, (tuple, list)) and bool(values) and all(map(valid, values))
    return listed and len(set(values)) == len(values)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (lambda v: is_whole(v, 0), "use a whole number of at least 0"),
    "whole": (is_whole, "use a whole number of at least 1"),
    "several": (lambda v: is_whole(v, 2), "use a whole number of at least 2"),
    "positive": (lambda v: is_number(v) and v > 0, "use a positive number"),
    "groups": (
        lambda v: is_whole(v, 2 * GROUPS) and not v % GROUPS,
        f"use a multiple of {GROUPS} from {2 * GROUPS} up",
    ),
    "sizes": (lambda v: is_distinct(v, is_whole), "give different whole numbers of at least 1, such as (64, 128)"),
    "numbers": (lambda v: is_distinct(v, is_number), "give different numbers, such as (0.5, 1.0)"),
}


def require(config: ConfigDict, name: str, valid: bool, remedy: str) -> None:
    """InputError ``config.<name> is <value>: <remedy>.`` unless ``valid``."""
    if not valid:
        raise InputError(f"config.{name} is {config[name]!r}: {remedy}.")


def check_fields(config: ConfigDict, **names: str) -> None:
    """InputError unless ``seed`` and these fields are of their kind, such as ``whole="width depth"``."""
    for kind, of_kind in {"seed": "seed", **names}.items():
        valid, remedy = _KINDS[kind]
        for name in of_kind.split():
            require(config, name, valid(config[name]), remedy)


def require_fractions(config: ConfigDict, depths: Sequence[int]) -> None:
    """InputError unless ``config.fractions`` rise and are whole numbers of layers at each of ``depths``."""
    values = config.fractions
    rise = is_distinct(values, is_number) and list(values) == sorted(values) and len(values) > 1 and values[-1] < 1
    layers = [depth * fraction for depth in depths for fraction in values] if rise else []
    remedy = "give two or more rising fractions below 1 that are whole numbers of layers at depths "
    remedy += f"{', '.join(map(str, depths))}, such as (0.125, 0.25)"
    require(config, "fractions", rise and all(layer >= 1 and layer == round(layer) for layer in layers), remedy)
