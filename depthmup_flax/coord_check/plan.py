"""Validation before training: the sizes to try, and that the networks grow with them."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from depthmup_flax.errors import InputError
from depthmup_flax.rule.info_trees import param_count
from depthmup_flax.rule.parametrization import ParamInfo


class Size(NamedTuple):
    """One network of a check: ``size`` is its value of ``axis``, "width" or "depth"."""

    axis: str
    size: int
    width: int
    depth: int


def require_plan(
    widths: Sequence[int], depths: Sequence[int], width: int, depth: int, steps: int, seeds: int, tolerance: float
) -> None:
    """Raises `InputError` for arguments that `coord_check` cannot use."""
    if not widths and not depths:
        raise InputError("widths and depths are both empty: give at least three sizes of one.")
    for name, sizes in (("widths", widths), ("depths", depths)):
        if sizes and (len(set(sizes)) < 3 or min(sizes) < 1):
            raise InputError(f"{name} is {tuple(sizes)}: an exponent needs at least three different positive sizes.")
    for name, size in (("width", width), ("depth", depth)):
        if size < 1:
            raise InputError(f"{name} is {size}: use a positive number.")
    if steps < 1:
        raise InputError(f"steps is {steps}: use at least 1.")
    if seeds < 2:
        raise InputError(f"seeds is {seeds}: a confidence interval needs at least 2.")
    if not isinstance(tolerance, numbers.Real) or not 0 < float(tolerance) < 0.5:
        raise InputError(
            f"tolerance is {tolerance}: use a number above 0 and below 0.5; mistakes have exponents of 1/2 or more."
        )


def require_growth(axis: str, sizes: Sequence[int], infos: Sequence[Mapping[str, ParamInfo]]) -> None:
    """Raises `InputError` unless the networks grow with their sizes.

    Equal networks would pass the check: everything in them is flat.
    """
    of_size = dict(sorted(zip(sizes, infos, strict=True), key=lambda pair: pair[0]))
    for (small, few), (large, many) in itertools.pairwise(of_size.items()):
        if param_count(many) <= param_count(few):
            raise InputError(
                f"build makes a network of {param_count(few)} parameters at {axis} {small} and of {param_count(many)} "
                f"at {axis} {large}: build the model with the {axis} that build is called with."
            )
        inside = [{path: leaf for path, leaf in info.items() if leaf.in_branch} for info in (few, many)]
        if axis == "depth" and all(inside):
            _require_branches_grow(small, large, *inside)


def _require_branches_grow(small: int, large: int, few: Mapping[str, ParamInfo], many: Mapping[str, ParamInfo]) -> None:
    if param_count(many) <= param_count(few):
        raise InputError(
            f"info has {param_count(few)} parameters inside residual branches at depth {small} and {param_count(many)} "
            f"at depth {large}, but the network grows: in_branch must match the branches of every layer."
        )
    ratios = [max(leaf.depth_ratio for leaf in leaves.values()) for leaves in (few, many)]
    if ratios[1] < ratios[0]:
        raise InputError(
            f"depth_ratio falls from {ratios[0]:g} at depth {small} to {ratios[1]:g} at depth {large}: pass "
            "depth / base_depth, not its inverse."
        )
