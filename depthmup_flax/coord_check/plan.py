"""What is checked before anything trains: the sizes to try, and that the networks follow them."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from depthmup_flax.errors import InputError
from depthmup_flax.rule.info_trees import param_count
from depthmup_flax.rule.parametrization import ParamInfo


def require_plan(
    widths: Sequence[int], depths: Sequence[int], width: int, depth: int, steps: int, seeds: int, tolerance: Any
) -> None:
    """The arguments of `coord_check`; raises `InputError`."""
    if not widths and not depths:
        raise InputError("widths and depths are both empty: give at least three of one.")
    for name, sizes in (("widths", widths), ("depths", depths)):
        if sizes and (len(set(sizes)) < 3 or min(sizes) < 1):
            raise InputError(f"{name} is {tuple(sizes)}: an exponent needs at least three different positive sizes.")
    for name, size in (("width", width), ("depth", depth)):
        if size < 1:
            raise InputError(f"{name} is {size}: use a positive number.")
    if steps < 1:
        raise InputError(f"steps is {steps}: use at least 1.")
    if seeds < 2:
        raise InputError(f"seeds is {seeds}: an interval needs at least 2.")
    if not isinstance(tolerance, numbers.Real) or not 0 < float(tolerance) < 0.5:
        raise InputError(
            f"tolerance is {tolerance}: use a number above 0 and below 0.5, since mistakes have exponents of 1/2."
        )


def require_growth(axis: str, sizes: Sequence[int], infos: Sequence[Mapping[str, ParamInfo]]) -> None:
    """Raises `InputError` unless the networks grow along an axis as their sizes do.

    Networks that are all alike are flat in everything, and would pass.
    """
    of_size = dict(sorted(zip(sizes, infos, strict=True), key=lambda pair: pair[0]))
    for small, large in zip(list(of_size), list(of_size)[1:], strict=False):
        infos_of_two = (of_size[small], of_size[large])
        few, many = (param_count(info) for info in infos_of_two)
        if many <= few:
            raise InputError(
                f"build makes a network of {few} parameters at {axis} {small} and of {many} at {axis} {large}: let the "
                f"model have the {axis} that build is called with."
            )
        inside = [{path: leaf for path, leaf in info.items() if leaf.in_branch} for info in infos_of_two]
        if axis == "depth" and all(inside):
            _require_branches_grow(small, large, *inside)


def _require_branches_grow(small: int, large: int, few: Mapping[str, ParamInfo], many: Mapping[str, ParamInfo]) -> None:
    counts = param_count(few), param_count(many)
    if counts[1] <= counts[0]:
        raise InputError(
            f"info has {counts[0]} parameters inside residual branches at depth {small} and {counts[1]} at depth "
            f"{large}, though the network grows: let in_branch match the branches of every layer."
        )
    ratios = [max(leaf.depth_ratio for leaf in leaves.values()) for leaves in (few, many)]
    if ratios[1] < ratios[0]:
        raise InputError(
            f"depth_ratio falls from {ratios[0]:g} at depth {small} to {ratios[1]:g} at depth {large}: it is depth / "
            "base_depth, not the inverse."
        )
