"""Checks of a figure's config: every wrong field is one sentence before anything is measured."""

from __future__ import annotations

import math
from collections.abc import Callable

from ml_collections import ConfigDict

from depthmup_flax.errors import InputError
from depthmup_flax.limits.finite_networks import GROUPS


def require(config: ConfigDict, name: str, valid: bool, remedy: str) -> None:
    """InputError ``config.<name> is <value>: <remedy>.`` unless ``valid``."""
    if not valid:
        raise InputError(f"config.{name} is {config[name]!r}: {remedy}.")


def require_whole(config: ConfigDict, *names: str, at_least: int = 1) -> None:
    """InputError unless each field is a whole number of at least ``at_least``."""
    for name in names:
        require(config, name, _is_whole(config[name], at_least), f"use a whole number of at least {at_least}")


def require_positive(config: ConfigDict, *names: str) -> None:
    """InputError unless each field is a finite number above 0."""
    for name in names:
        require(config, name, is_number(config[name]) and config[name] > 0, "use a positive number")


def require_groups(config: ConfigDict, *names: str) -> None:
    """InputError unless each field is a number of networks that `GROUPS` divides."""
    for name in names:
        valid = _is_whole(config[name], 2 * GROUPS) and config[name] % GROUPS == 0
        require(config, name, valid, f"use a multiple of {GROUPS} from {2 * GROUPS} up")


def require_sizes(config: ConfigDict, *names: str, at_least: int = 1) -> None:
    """InputError unless each field is a tuple of different whole numbers of at least ``at_least``."""
    remedy = f"give different whole numbers of at least {at_least}, such as (64, 128)"
    for name in names:
        require(config, name, is_distinct(config[name], lambda size: _is_whole(size, at_least)), remedy)


def is_distinct(values: object, valid: Callable[[object], bool]) -> bool:
    """Whether ``values`` is a tuple or list of one or more different, valid elements."""
    if not isinstance(values, (tuple, list)) or not values or not all(map(valid, values)):
        return False
    return len(set(values)) == len(values)


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: object, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
