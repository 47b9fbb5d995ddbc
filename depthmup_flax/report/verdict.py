"""Verdicts: whether an interval shows a claim, whether a rate transfers, and what a sweep can show about it.

Letters in shapes: S seeds, X grid points.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import scipy.special

from depthmup_flax.report import optimum as opt
from depthmup_flax.report import transfer
from depthmup_flax.report.curves import OCTAVES, Curve, Scale
from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.transfer import Analysis, Row, Variant

SHOWN, OPPOSITE, NOT_RESOLVED, NO_EVIDENCE = "shown", "opposite", "not resolved", "no evidence"
TRANSFERS, DOES_NOT_TRANSFER = "transfers", "does not transfer"
POWER = 0.8
MOST_SEEDS = 100
# Of several sizes, the first of these verdicts that one of them has is that of all.
WORST_FIRST = OPPOSITE, NOT_RESOLVED, NO_EVIDENCE, SHOWN
# A regret up to this share of what the base learned is small: of the loss before learning minus its lowest loss.
TOLERANCE = 0.02
# If more of the grid, or more octaves, would pass, passing is no evidence. Four octaves are half of the widest grid of
# the sweeps that were judged before this limit; it keeps useless rates, which may be added, from making evidence.
_MOST_PASSING, MOST_OCTAVES = 0.5, 4.0
_MOVED = 0.5  # octaves of the best x from which a headline does not call it transferred without saying so
_POINTS = 401  # at which a fitted curve is compared with the tolerance
_ROUNDS_TO_0 = 5e-5  # a loss is printed with four digits


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """A tolerance, and what it means for one curve."""

    tolerance: float  # the largest small regret, in units of the loss
    passing: float  # how much of the grid has at most this regret
    grid: float  # the length of the grid
    unit: str  # of both

    @property
    def is_empty(self) -> bool:
        """Whether so much of the grid would pass that passing says nothing; or the base learned nothing."""
        most = min(_MOST_PASSING * self.grid, MOST_OCTAVES if self.unit == OCTAVES else math.inf)
        return not self.tolerance > 0 or self.passing > most


def tolerance_of(variant: Variant, share: float) -> float:
    """That share of what the variant's base learned; NaN if it is unknown."""
    best = variant.base.optimum
    return share * (variant.initial_loss - best.loss.value) if best else math.nan


def yardstick(scale: Scale, curve: Curve, tolerance: float, most: float = math.inf) -> Yardstick:
    """The yardstick for a regret at ``curve``; ``most``: see `Variant`."""
    ends = scale.coordinate(curve.x[[0, -1]])
    u, losses = finite(scale, curve)
    at = np.linspace(u[0], u[-1], _POINTS)
    passes = opt.excess(u, np.tile(losses.mean(0), (_POINTS, 1)), at, opt.belonging(u, losses, most)) <= tolerance
    return Yardstick(tolerance, float(passes.mean() * (u[-1] - u[0])), float(ends[1] - ends[0]), scale.unit)


def finite(scale: Scale, curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (X,) and losses (S, X) where no seed diverged."""
    finite = np.isfinite(curve.losses).all(0)
    return np.asarray(scale.coordinate(curve.x[finite])), curve.losses[:, finite]


@dataclasses.dataclass(frozen=True)
class Judgment:
    """A verdict on a bound."""

    verdict: str  # SHOWN, OPPOSITE, NOT_RESOLVED, or of a regret NO_EVIDENCE
    seeds: int | None = None  # `seeds_needed`, if not resolved


def judge(estimate: Estimate, bound: float) -> Judgment:
    """Whether its 95 % interval shows that a quantity is at most ``bound``, or above; for "at least" negate both."""
    ends = estimate.interval
    if ends and ends[1] <= bound:
        return Judgment(SHOWN)
    if ends and ends[0] > bound:
        return Judgment(OPPOSITE)
    return Judgment(NOT_RESOLVED, seeds_needed(estimate, bound))


def unless_empty(judgment: Judgment, measured_by: Yardstick) -> Judgment:
    """No evidence in place of a verdict on a regret if too much of the grid would pass, unless the regret is above."""
    return Judgment(NO_EVIDENCE) if measured_by.is_empty and judgment.verdict != OPPOSITE else judgment


def seeds_needed(estimate: Estimate, bound: float) -> int | None:
    """The fewest seeds n with which the 95 % interval of such an estimate excludes ``bound`` four times in five.

    With the standard error s of the S seeds at hand, sigma = s sqrt(S) and the power 0.8, that is the smallest n with
    ``(t_{0.975}(n - 1) + t_{0.8}(n - 1)) sigma / sqrt(n) <= |value - bound|``, the sample size of a one-sample t-test
    in its usual approximation. ``None`` if n is above `MOST_SEEDS`, or the noise is unknown.
    """
    if estimate.draws is None:
        return None
    sigma = estimate.standard_error * math.sqrt(estimate.seeds)
    for n in range(2, MOST_SEEDS + 1):
        quantiles = scipy.special.stdtrit(n - 1, 0.975) + scipy.special.stdtrit(n - 1, POWER)
        if quantiles * sigma / math.sqrt(n) <= abs(estimate.value - bound):
            return n
    return None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether one variant's best x at the base is good at other sizes along ``axis``."""

    variant: str
    axis: str  # depth, width, or "width and depth"
    row: Row  # the size that decides: the largest, or where a rate does not transfer the one at which it costs most
    verdict: str  # TRANSFERS, DOES_NOT_TRANSFER, NOT_RESOLVED, NO_EVIDENCE or transfer.UNTRAINED
    remark: str = ""  # what decides if regrets do not, or limits them
    measured_by: Yardstick | None = None  # if regrets decide
    seeds_needed: int | None = None  # if it is not resolved
    other_loss: str = ""  # the verdict by another loss; empty if there is none
    is_largest: bool = True  # whether the size that decides is the largest along the axis

    @property
    def moved(self) -> bool:
        """Whether the best x moves by more than half an octave, and its interval does not contain 0."""
        shift = self.row.shift
        if shift is None or shift.interval is None:
            return False
        return abs(shift.value) > _MOVED and not shift.interval[0] <= 0 <= shift.interval[1]


def verdicts(analysis: Analysis, tolerance: float = TOLERANCE, other: Analysis | None = None) -> list[Verdict]:
    """One per variant and axis with more than one size; ``other`` is the same sweep by another loss."""
    by_other = {(one.variant, one.axis): one.verdict for one in (verdicts(other, tolerance) if other else ())}
    results = []
    for variant in analysis.variants:
        base, optimum = variant.base.curve, variant.base.optimum
        if optimum is None or optimum.flag == opt.ONE_VALUE:
            continue
        others = [row for row in variant.rows if row is not variant.base]
        larger = [row for row in others if row.curve.width >= base.width and row.curve.depth >= base.depth]
        through_base = [axis for axis in analysis.axes if axis.fixed == base.size(axis.other)]
        axes = {axis.name: axis.rows(larger) or axis.rows(others) for axis in through_base}
        axes["width and depth"] = [r for r in larger if r.curve.width != base.width and r.curve.depth != base.depth]
        for name, rows in axes.items():
            if rows:
                one = _verdict(analysis, variant, name, rows, tolerance)
                is_largest = one.row.size == max(row.size[::-1] for row in rows)[::-1]
                by_loss = by_other.get((one.variant, one.axis), "")
                results.append(dataclasses.replace(one, other_loss=by_loss, is_largest=is_largest))
    return results


def _verdict(analysis: Analysis, variant: Variant, axis: str, rows: Sequence[Row], share: float) -> Verdict:
    base, x = variant.base, analysis.scale.name
    by_size = sorted(rows, key=lambda row: row.size[::-1])  # by depth, then width
    untrained = [row for row in by_size if row.regret == transfer.UNTRAINED or row.optimum is None]
    diverged = [row for row in by_size if row.regret == transfer.DIVERGED and row.optimum is not None]
    known = [(row, row.regret) for row in by_size if isinstance(row.regret, Estimate)]
    tolerance, before = tolerance_of(variant, share), f"{variant.initial_loss:.3g}, that {analysis.initial_loss_name}"
    result = functools.partial(Verdict, variant.name, axis)
    if untrained:
        return result(untrained[-1], transfer.UNTRAINED, f"no {x} brings the loss below twice {before}")
    if not tolerance > 0:
        return result(by_size[-1], NO_EVIDENCE, f"the base's loss is not below {before}")
    if diverged:
        return result(diverged[-1], DOES_NOT_TRANSFER, f"diverges at the base's best {x}")
    if not known:
        return result(by_size[-1], NOT_RESOLVED, f"the base's best {x} was not run")
    if base.edge:
        return result(by_size[-1], NOT_RESOLVED, f"the base's best {x} is the {base.edge}: extend the grid")
    rulers = [yardstick(analysis.scale, row.curve, tolerance, variant.most) for row, _ in known]
    judged = [
        (row, regret, ruler, unless_empty(judge(regret, tolerance), ruler))
        for (row, regret), ruler in zip(known, rulers, strict=True)
    ]
    worst = min((one[3].verdict for one in judged), key=WORST_FIRST.index)
    # Where the rate is good everywhere the largest size decides, else the one at which it costs most.
    row, _, ruler, judgment = (
        judged[-1] if worst == SHOWN else max((o for o in judged if o[3].verdict == worst), key=lambda o: o[1].value)
    )
    if worst in (OPPOSITE, NO_EVIDENCE):
        return result(row, DOES_NOT_TRANSFER if worst == OPPOSITE else worst, measured_by=ruler)
    if outside := [one for one, _ in known if not one.bracketed]:  # there the regret is only known from below
        return result(row, NOT_RESOLVED, f"best {x} at the edge of the grid at {sizes(outside, axis)}", ruler)
    return result(row, NOT_RESOLVED if worst == NOT_RESOLVED else TRANSFERS, "", ruler, judgment.seeds)


def rounded_loss(value: float) -> str:
    """A loss, or another contrast, with two digits."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return "0" if abs(value) < _ROUNDS_TO_0 else f"{value:.2g}"


def sizes(rows: Sequence[Row], axis: str) -> str:
    """``depth 4 and 16``."""
    if axis == "width and depth":
        return ", ".join(f"width {row.curve.width} depth {row.curve.depth}" for row in rows)
    return f"{axis} " + " and ".join(str(row.curve.size(axis)) for row in rows)
