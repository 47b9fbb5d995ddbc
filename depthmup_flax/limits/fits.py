"""Fitted powers, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from depthmup_flax.coord_check.verdict import fit_power


def fitted(values_of_size: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """The power of values in size by least squares of logs, and half of its 95 % interval (nan below 3 sizes)."""
    fit = fit_power({size: list(values) for size, values in values_of_size.items()})
    return fit.slope, fit.half_width
