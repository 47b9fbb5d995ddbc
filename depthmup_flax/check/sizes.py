"""The sizes of a check: those that are given must be usable, and the others are chosen by their cost."""

from __future__ import annotations

import numbers
from collections.abc import Collection, Sequence
from typing import Any

from depthmup_flax.util.errors import InputError

# Times the base's sizes. Small networks are far from their limits: the largest that the budgets allow are taken.
_FACTORS = ((4, 8, 16), (2, 4, 8), (1, 2, 4))
# Of the networks of an axis together. On two CPU cores, a check of this cost takes less than a minute.
_FLOPS_OVER_WIDTH, _FLOPS_OVER_DEPTH = 8e9, 3e9  # of one forward pass each
_EQUATIONS = 2500  # that are compiled, if layers are not in a loop


def chosen_sizes(width: int, depth: int, flops: float, equations: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Widths and depths whose networks the budgets allow; the smallest ones if none are cheap enough.

    Args:
      width, depth: of the base.
      flops: of its forward pass; they grow as width^2 and as depth.
      equations: of its jaxpr; at most, they grow as depth.
    """
    cheap = lambda cost: next((factors for factors in _FACTORS if cost(factors) <= 1), _FACTORS[-1])
    wider = cheap(lambda factors: flops * sum(times**2 for times in factors) / _FLOPS_OVER_WIDTH)
    deeper = cheap(lambda factors: sum(factors) * max(flops / _FLOPS_OVER_DEPTH, equations / _EQUATIONS))
    return tuple(width * times for times in wider), tuple(depth * times for times in deeper)


def require_plan(
    widths: Sequence[int], depths: Sequence[int], width: int, depth: int, steps: int, seeds: int, tolerance: float
) -> None:
    """Raises `InputError` for arguments that `coord_check` cannot use."""
    for name, sizes in (("widths", widths), ("depths", depths)):
        if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Collection) or not all(map(_is_integer, sizes)):
            raise InputError(f"{name} is {sizes!r}: give integers, such as {name}=(128, 256, 512).")
    for name, sizes in (("widths", widths), ("depths", depths)):
        if sizes and (len(set(sizes)) < 3 or min(sizes) < 1):
            raise InputError(f"{name} is {tuple(sizes)}: use at least three positive sizes, such as (64, 128, 256).")
    for name, value in (("width", width), ("depth", depth), ("steps", steps), ("seeds", seeds)):
        if not _is_integer(value):
            raise InputError(f"{name} is {value!r}: use an integer.")
        if value < 1:
            raise InputError(f"{name} is {value}: use a positive number.")
    if seeds < 2:
        raise InputError(f"seeds is {seeds}: a confidence interval needs at least 2. Use, for example, seeds=4.")
    if not isinstance(tolerance, numbers.Real) or not 0 < float(tolerance) < 0.5:
        raise InputError(
            f"tolerance is {tolerance}: use a number above 0 and below 0.5; mistakes have exponents of 1/2 or more."
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
