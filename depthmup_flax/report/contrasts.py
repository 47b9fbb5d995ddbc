"""Controls against the rule at the largest size, and the headline of a report."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from depthmup_flax.report import transfer
from depthmup_flax.report.curves import Curve, Scale
from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.transfer import UNTRAINED, Analysis, Row, Variant
from depthmup_flax.report.verdict import (
    NO_EVIDENCE,
    NOT_RESOLVED,
    OPPOSITE,
    SHOWN,
    TRANSFERS,
    Verdict,
    Yardstick,
    rounded_loss,
    tolerance_of,
)

SAME = "the same"
_SAME_LOSS = 1e-5  # relative: the same run but for rounding in float32
_RULE = "depth_mup"  # a sweep is about the first variant of this preset that has a control, if it has any


@dataclasses.dataclass(frozen=True)
class Contrast:
    """A control against the rule at the largest size: regret of the control minus the rule's."""

    control: str
    # SHOWN if the control costs more, OPPOSITE if less, NOT_RESOLVED; SAME if its cost or runs are equal; UNTRAINED.
    verdict: str
    estimate: Estimate | None  # None if the control does not train, or diverges at the base's optimum
    remark: str = ""  # what decides if the estimate does not
    other_loss: str = ""  # the verdict by another loss; empty if there is none


def contrasts(analysis: Analysis, axis: str, other: Analysis | None = None) -> list[Contrast]:
    """Each control against the rule, at the largest size along ``axis`` that both have, by this and by another loss."""
    rule, controls = rule_of(analysis)
    own = [contrast for control in controls if (contrast := _contrast(analysis, rule, control, axis))]
    if other is None:
        return own
    by_other = {one.control: one.verdict for one in contrasts(other, axis)}
    return [dataclasses.replace(one, other_loss=by_other.get(one.control, NOT_RESOLVED)) for one in own]


def _contrast(analysis: Analysis, rule: Variant, control: Variant, axis: str) -> Contrast | None:
    """``None`` if one of them was not run at the base's best x, or the rule does not train there."""
    line, of_size = analysis.along(axis), {row.size: row for row in control.rows if row is not control.base}
    rows = [row for row in (line.rows(rule.rows) if line else rule.rows) if row.size in of_size]
    ours = max(rows, key=lambda row: row.size[::-1], default=None)
    if ours is None or not isinstance(ours.regret, Estimate):
        return None
    theirs, x = of_size[ours.size], analysis.scale.name
    if theirs.regret == UNTRAINED or theirs.optimum is None:
        return Contrast(control.name, UNTRAINED, None)
    if theirs.regret == transfer.DIVERGED:
        return Contrast(control.name, SHOWN, None, f"diverges at the base's best {x}")
    if not isinstance(theirs.regret, Estimate):
        return None
    difference = theirs.regret - ours.regret
    result = functools.partial(Contrast, control.name, estimate=difference)
    if same := same_runs(analysis, control, rule, axis):
        return result(verdict=SAME, remark=same)
    for whose, base in ((f"{rule.name}'s", rule.base), ("its", control.base)):
        if base.edge:
            return result(verdict=NOT_RESOLVED, remark=f"{whose} best {x} at the base is the {base.edge}")
    if difference.value == 0 and (difference.draws is None or not difference.draws.any()):
        return result(verdict=SAME)
    low, high = difference.interval or (-math.inf, math.inf)
    verdict = SHOWN if low > 0 else OPPOSITE if high < 0 else NOT_RESOLVED
    decisive = {SHOWN: ours, OPPOSITE: theirs}.get(verdict)
    if decisive and not decisive.bracketed:  # this regret may be larger than measured
        return result(verdict=NOT_RESOLVED, remark="an optimum is at the edge of the grid")
    return result(verdict=verdict)


def rule_of(analysis: Analysis) -> tuple[Variant, list[Variant]]:
    """The variant that the sweep is about, and its controls.

    A control has another preset, and otherwise differs from the rule at most in numbers, such as the branch multiplier
    that goes with the preset. If no variant has the rule's preset, a control differs in one word.
    """
    candidates = [variant for variant in analysis.variants if _RULE in _words(variant)] or list(analysis.variants)

    def is_control(rule: Variant, other: Variant) -> bool:
        ours, theirs = _words(rule), _words(other)
        return len(ours - theirs) == len(theirs - ours) == 1 and (_RULE not in ours or _RULE not in theirs)

    pairs = [(one, [other for other in analysis.variants if is_control(one, other)]) for one in candidates]
    return next((pair for pair in pairs if pair[1]), pairs[0])


def _words(variant: Variant) -> set[str]:
    """``batch, depth_mup, branch_multiplier=1.06`` -> its parts that are not numbers."""
    words = set()
    for part in variant.name.split(", "):
        try:
            float(part.rpartition("=")[2])
        except ValueError:
            words.add(part)
    return words


def headline(
    analysis: Analysis, own: Verdict | None, against: Sequence[Contrast], along: Sequence[Verdict] = ()
) -> str:
    """Whether the rule's x transfers along its first axis, the controls that are better or worse, and further axes.

    Args:
      analysis: of the sweep.
      own: the rule's verdict along its first axis.
      against: the controls; those count that are better or worse by both losses.
      along: the rule's verdicts along all axes.
    """
    if own is None:
        return f"No verdict, which takes two sizes and several values of the {analysis.scale.name}."
    name = own.variant or f"the {analysis.scale.name}"
    claims = {
        UNTRAINED: f"{name} does not train",
        NOT_RESOLVED: f"not resolved whether {name} transfers over {_place(own)}",
        NO_EVIDENCE: f"no evidence whether {name} transfers over {_place(own)}",
    }
    parts = [claims.get(own.verdict, f"{name} {own.verdict} over {_place(own)}")]
    if own.other_loss not in ("", own.verdict):
        parts[0] += f" by {analysis.loss_name} ({own.other_loss} by the other loss)"
    agreed = [one for one in against if own.verdict != UNTRAINED and one.other_loss in ("", one.verdict)]
    for word, kind in (("better", SHOWN), ("worse", OPPOSITE)):
        if names := [one.control for one in agreed if one.verdict == kind]:
            parts.append(f"{word} than {' and '.join(names)}")
    text = "; ".join([", ".join(parts), *_further(own, along)]) + _although_moved(analysis, [own, *along]) + "."
    text = text[0].upper() + text[1:] if text.startswith(("the ", "not ", "no ")) else text
    return f"{text} {cost}" if (cost := _cost_without_evidence(analysis, [own, *along])) else text


def _place(one: Verdict) -> str:
    """The axis, with the size that decides where that is not the largest one."""
    is_said = one.is_largest or one.verdict == NO_EVIDENCE  # of which `_cost_without_evidence` tells
    return one.axis if is_said else f"{one.axis} (at {one.row.curve.width} x {one.row.curve.depth})"


def _further(own: Verdict, along: Sequence[Verdict]) -> list[str]:
    """``does not transfer over width``, of the axes after the first."""
    by_verdict: dict[str, list[str]] = {}
    for one in along:
        if one.axis != own.axis:
            by_verdict.setdefault(one.verdict, []).append(_place(one))
    return [f"{verdict} over {' and over '.join(places)}" for verdict, places in by_verdict.items()]


def _although_moved(analysis: Analysis, along: Sequence[Verdict]) -> str:
    """How far the best x moves and what the base's costs, where it transfers although it moves; else empty."""
    worst = _costliest([one for one in along if one.verdict == TRANSFERS and analysis.scale.log and one.moved])
    if worst is None:
        return ""
    cost, ruler, one = worst
    stricter = f"tolerance {rounded_loss(ruler.tolerance)}: {_stricter(analysis, one.variant, ruler)} is stricter"
    return (
        f", but at {one.row.curve.width} x {one.row.curve.depth} the best {analysis.scale.name} moves by "
        f"{_shift(one.row, ruler.unit)}, and keeping the base's adds {rounded_loss(cost)} to the {analysis.loss_name} "
        f"({stricter})"
    )


def _cost_without_evidence(analysis: Analysis, along: Sequence[Verdict]) -> str:
    """How far the best x moved and what the base's costs at most, where the tolerance is too large to judge it."""
    worst = _costliest([one for one in along if one.verdict == NO_EVIDENCE])
    if worst is None:
        return ""
    cost, ruler, one = worst
    moved = f"moved by {_shift(one.row, ruler.unit)} and " if one.row.shift is not None else ""
    passing = "most" if ruler.passing > ruler.grid / 2 else f"{ruler.passing:.2g} {ruler.unit}"
    return (
        f"At {one.row.curve.width} x {one.row.curve.depth} it {moved}cost {rounded_loss(cost)}, within the "
        f"tolerance of {rounded_loss(ruler.tolerance)}, as {passing} of the grid would: "
        f"{_stricter(analysis, one.variant, ruler)} is stricter."
    )


def _costliest(verdicts: Sequence[Verdict]) -> tuple[float, Yardstick, Verdict] | None:
    """The largest regret, with the verdict on it; ``None`` if none is known."""
    costs = [
        (one.row.regret.value, one.measured_by, one)
        for one in verdicts
        if isinstance(one.row.regret, Estimate) and one.measured_by is not None
    ]
    return max(costs, key=lambda one: one[0], default=None)


def _shift(row: Row, unit: str) -> str:
    """``-1.9 ± 0.041 octaves``."""
    if row.shift is None:
        return ""
    bound = f"{row.bound} " if row.bound else ""
    spread = f" ± {row.shift.half_width:.2g}" if row.shift.half_width is not None else ""
    return f"{bound}{row.shift.value:+.2g}{spread} {unit}"


def _stricter(analysis: Analysis, name: str, ruler: Yardstick) -> str:
    """The flag of half the tolerance, for the variant of that name."""
    (learned,) = (tolerance_of(variant, 1.0) for variant in analysis.variants if variant.name == name)
    return f"--tolerance={ruler.tolerance / learned / 2:.1g}"


def main_verdict(analysis: Analysis, judged: Iterable[Verdict]) -> Verdict | None:
    """The rule's, along its first axis."""
    rule, _ = rule_of(analysis)
    return next((one for one in judged if one.variant == rule.name), None)


def same_runs(analysis: Analysis, variant: Variant, other: Variant, axis: str) -> str:
    """Says that all runs along an axis are those of the other variant, at x times a constant of each size; else empty.

    Such a variant is no evidence as a control: with frozen stem and readout, Adam under ``block_only`` at a rate is
    ``depth_mup`` at sqrt(r) times it, run for run.

    ``axis``: ``depth`` or ``width``; any other name takes all sizes. The base's runs do not count.
    """
    line = analysis.along(axis)
    rows = line.rows(variant.rows) if line else variant.rows
    theirs = {row.size: row.curve for row in other.rows}
    compared = [row for row in rows if row is not variant.base and row.size in theirs]
    equal = [_equal_runs(analysis.scale, row.curve, theirs[row.size]) for row in compared]
    if not equal or not all(equal):
        return ""
    return f"{variant.name} repeats {other.name}'s runs at shifted {analysis.scale.name}s ({sum(equal)} are equal)"


def _equal_runs(scale: Scale, a: Curve, b: Curve) -> int:
    """How many runs two curves share if one is the other with x moved by a constant; 0 if it is not."""
    if a.seeds != b.seeds:
        return 0
    u, v = scale.coordinate(a.x), scale.coordinate(b.x)
    for shift in sorted(range(1 - len(v), len(u)), key=abs):
        i, j = max(shift, 0), max(-shift, 0)
        n = min(len(u) - i, len(v) - j)
        moved = u[i : i + n] - v[j : j + n]
        ours, theirs = a.losses[:, i : i + n], b.losses[:, j : j + n]
        same = np.allclose(ours, theirs, rtol=_SAME_LOSS, atol=0, equal_nan=True) and np.isfinite(ours).any()
        if n > 1 and same and np.allclose(moved, moved[0], atol=1e-6):
            return ours.size
    return 0
