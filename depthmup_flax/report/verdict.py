"""Verdicts: whether an interval shows a claim, whether a rate transfers, and the sentence that says so."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import scipy.special

from depthmup_flax.report import optimum as opt
from depthmup_flax.report import transfer
from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.transfer import Analysis, Row, Variant
from depthmup_flax.report.yardstick import TOLERANCE, Yardstick, tolerance_of, yardstick

SHOWN, OPPOSITE, NOT_RESOLVED, NO_EVIDENCE = "shown", "opposite", "not resolved", "no evidence"
TRANSFERS, DOES_NOT_TRANSFER = "transfers", "does not transfer"
POWER = 0.8
MOST_SEEDS = 100
# Of several sizes, the first of these verdicts that one of them has is that of all.
WORST_FIRST = OPPOSITE, NOT_RESOLVED, NO_EVIDENCE, SHOWN
_ROUNDS_TO_0 = 5e-5  # a loss is printed with four digits


@dataclasses.dataclass(frozen=True)
class Judgment:
    """A verdict on a bound."""

    verdict: str  # SHOWN, OPPOSITE, NOT_RESOLVED, or of a regret NO_EVIDENCE
    seeds: int | None = None  # `seeds_needed`, if not resolved


def judge(estimate: Estimate, bound: float) -> Judgment:
    """Whether its 95 % interval shows that a quantity is at most ``bound``; the opposite is that it is above.

    For "at least" negate both.
    """
    ends = estimate.interval
    if ends and ends[1] <= bound:
        return Judgment(SHOWN)
    if ends and ends[0] > bound:
        return Judgment(OPPOSITE)
    return Judgment(NOT_RESOLVED, seeds_needed(estimate, bound))


def unless_empty(judgment: Judgment, measured_by: Yardstick) -> Judgment:
    """No evidence in place of a verdict on a regret if most of the grid would pass, unless the regret is above."""
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


def undecided(seeds: int, what: str, needed: int | None) -> str:
    """``3 seeds do not decide whether ..., 5 would``; ``needed`` is from `seeds_needed`."""
    if seeds == 1:
        return f"1 seed does not decide{what}"
    return f"{seeds} seeds do not decide{what}, " + (f"{needed} would" if needed else f"nor would {MOST_SEEDS}")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether one variant's best x at the base is good at other sizes along ``axis``."""

    variant: str
    axis: str  # depth, width, or "width and depth"
    row: Row  # the size that decides: the largest, or the worst
    verdict: str  # TRANSFERS, DOES_NOT_TRANSFER, NOT_RESOLVED, NO_EVIDENCE or transfer.UNTRAINED
    claim: str  # in words, as the reason
    reason: str
    measured_by: Yardstick | None = None  # if regrets decide
    seeds_needed: int | None = None  # if it is not resolved
    other_loss: str = ""  # the verdict by another loss; empty if there is none

    @property
    def sentence(self) -> str:
        """Claim and reason."""
        return in_a_sentence(self.claim, self.reason)


def in_a_sentence(claim: str, *reasons: str) -> str:
    """A claim and its reasons."""
    text = f"{claim}: {'; '.join(reasons)}."
    return text[0].upper() + text[1:] if text.startswith(("the ", "not ", "no ")) else text


def verdicts(analysis: Analysis, tolerance: float = TOLERANCE, other: Analysis | None = None) -> list[Verdict]:
    """One per variant and axis with more than one size.

    Args:
      analysis: of the loss that is judged.
      tolerance: the regret that is small, as a share of what the base learned; see `depthmup_flax.report.yardstick`.
      other: the same sweep by another loss. Where its verdict differs, the claim says both.
    """
    own = _verdicts(analysis, tolerance)
    if other is None:
        return own
    by_other = {(one.variant, one.axis): one.verdict for one in _verdicts(other, tolerance)}
    results = []
    for one in own:
        verdict = by_other.get((one.variant, one.axis), "")
        both = f"{one.claim} by {analysis.loss_name}, {verdict} by {other.loss_name}"
        claim = one.claim if verdict in ("", one.verdict) else both
        results.append(dataclasses.replace(one, other_loss=verdict, claim=claim))
    return results


def _verdicts(analysis: Analysis, tolerance: float) -> list[Verdict]:
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
        results += [_verdict(analysis, variant, name, rows, tolerance) for name, rows in axes.items() if rows]
    return results


def _verdict(analysis: Analysis, variant: Variant, axis: str, rows: Sequence[Row], share: float) -> Verdict:
    name, base = analysis.scale.name, variant.base
    tuned = f"the {name} tuned at {sizes([base], axis)}"
    by_size = sorted(rows, key=lambda row: row.size[::-1])  # by depth, then width
    untrained = [row for row in by_size if row.regret == transfer.UNTRAINED or row.optimum is None]
    diverged = [row for row in by_size if row.regret == transfer.DIVERGED and row.optimum is not None]
    known = [(row, row.regret) for row in by_size if isinstance(row.regret, Estimate)]
    tolerance, before = tolerance_of(variant, share), f"{variant.initial_loss:.3g}, that {analysis.initial_loss_name}"
    result = lambda row, verdict, reason, *measured: Verdict(
        variant.name, axis, row, verdict, _claim(verdict, variant.name or f"the {name}", axis), reason, *measured
    )
    if untrained:
        why = f"at {sizes(untrained, axis)} no {name} brings the {analysis.loss_name} below twice {before}"
        return result(untrained[-1], transfer.UNTRAINED, why)
    if not tolerance > 0:
        why = f"at {sizes([base], axis)} the {analysis.loss_name} is not below {before}"
        return result(by_size[-1], NO_EVIDENCE, why)
    if diverged:
        return result(diverged[-1], DOES_NOT_TRANSFER, f"{tuned} diverges at {sizes(diverged, axis)}")
    if not known:
        return result(by_size[-1], NOT_RESOLVED, f"{tuned} was not run at {sizes(by_size, axis)}")
    if base.edge:
        return result(by_size[-1], NOT_RESOLVED, f"{tuned} is the {base.edge}: extend the grid")
    return _by_regrets(analysis, variant, axis, known, tolerance, share, result)


def _by_regrets(
    analysis: Analysis,
    variant: Variant,
    axis: str,
    known: Sequence[tuple[Row, Estimate]],
    tolerance: float,
    share: float,
    result: Callable[..., Verdict],
) -> Verdict:
    """The verdict of the sizes' regrets; ``result`` makes it of the deciding row, the verdict and the reason."""
    base = variant.base
    rulers = [yardstick(analysis.scale, base.curve, row.curve, tolerance) for row, _ in known]
    judged = [
        (row, regret, ruler, unless_empty(judge(regret, tolerance), ruler))
        for (row, regret), ruler in zip(known, rulers, strict=True)
    ]
    worst = min((one[3].verdict for one in judged), key=WORST_FIRST.index)
    # Where the rate is good everywhere the largest size decides, else the one at which it costs most.
    row, regret, ruler, judgment = (
        judged[-1] if worst == SHOWN else max((o for o in judged if o[3].verdict == worst), key=lambda o: o[1].value)
    )
    tuned = f"the {analysis.scale.name} tuned at {sizes([base], axis)}"
    costs = f"{tuned} costs {in_words(regret, least=0.0, level='95 %: ')} in {analysis.loss_name}"
    parts = [f"{costs} at {sizes([row], axis)}", drift(analysis, variant, row, axis), str(ruler)]
    reason = "; ".join(filter(None, parts))
    if worst in (OPPOSITE, NO_EVIDENCE):
        return result(row, DOES_NOT_TRANSFER if worst == OPPOSITE else worst, reason, ruler)
    if outside := [one for one, _ in known if not one.bracketed]:  # there the regret is only known from below
        edge = f"the optimum is at the edge of the grid at {sizes(outside, axis)}"
        return result(row, NOT_RESOLVED, f"{reason}; {edge}", ruler)
    if worst == NOT_RESOLVED:
        what = f" whether that is below {tolerance:.2g}, {100 * share:.3g} % of what the base learned"
        more = undecided(regret.seeds, what, judgment.seeds)
        return result(row, NOT_RESOLVED, f"{reason}; {more}", ruler, judgment.seeds)
    return result(row, TRANSFERS, reason, ruler)


def _claim(verdict: str, name: str, axis: str) -> str:
    texts = {
        transfer.UNTRAINED: f"{name} does not train",
        NOT_RESOLVED: f"not resolved whether {name} transfers over {axis}",
        NO_EVIDENCE: f"no evidence whether {name} transfers over {axis}",
    }
    return texts.get(verdict, f"{name} {verdict} over {axis}")


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
