"""Numbers and lists in the sentences of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.transfer import Analysis, Row, Variant

_ROUNDS_TO_0 = 5e-5  # a loss is printed with four digits


def in_words(estimate: Estimate, *, least: float = -math.inf, level: str = "") -> str:
    """``0.003 (0 to 0.016)``; ``least`` is the smallest possible value, ``level`` precedes the interval."""
    ends = estimate.interval
    interval = f" ({level}{rounded_loss(max(ends[0], least))} to {rounded_loss(ends[1])})" if ends else ""
    return f"{rounded_loss(estimate.value)}{interval}"


def rounded_loss(value: float) -> str:
    """A loss, or another contrast, with two digits."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return "0" if abs(value) < _ROUNDS_TO_0 else f"{value:.2g}"


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def sizes(rows: Sequence[Row], axis: str) -> str:
    """``depth 4 and 16``."""
    if axis == "width and depth":
        return ", ".join(f"width {row.curve.width} depth {row.curve.depth}" for row in rows)
    return f"{axis} " + " and ".join(str(row.curve.size(axis)) for row in rows)


def drift(analysis: Analysis, variant: Variant, row: Row, axis: str) -> str:
    """``the optimum drifts by -0.3 octaves (-0.5 to -0.1), as depth^-0.40 (-0.46 to -0.35)``; empty if it is unknown.

    The power is there if its interval excludes 0.
    """
    if row.shift is None:
        return ""
    bound = {"<=": "at most ", ">=": "at least "}.get(row.bound, "")
    digits = 1 if analysis.scale.log else 2  # octaves, or the hyperparameter's own units
    interval = "" if row.bound else _signed_interval(row.shift, digits)
    moved = f"the optimum drifts by {bound}{_signed(row.shift.value, digits)} {analysis.scale.unit}{interval}"
    power = variant.slopes[axis].estimate if axis in variant.slopes else None
    ends = power.interval if power else None
    if power is None or ends is None or ends[0] <= 0 <= ends[1]:
        return moved
    return f"{moved}, as {axis}^{_signed(power.value, 2)}{_signed_interval(power, 2)}"


def _signed_interval(estimate: Estimate, digits: int) -> str:
    ends = estimate.interval
    return f" ({_signed(ends[0], digits)} to {_signed(ends[1], digits)})" if ends else ""


def _signed(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # + 0.0: no minus before a zero
