"""Controls against the rule at the largest size, and the headline of a report."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from depthmup_flax.report import optimum as opt
from depthmup_flax.report import transfer
from depthmup_flax.report.loss_surfaces import Curve, Scale
from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.transfer import UNTRAINED, Analysis, Variant
from depthmup_flax.report.verdict import (
    DOES_NOT_TRANSFER,
    NO_EVIDENCE,
    NOT_RESOLVED,
    OPPOSITE,
    SHOWN,
    Verdict,
    in_a_sentence,
    in_words,
    listed,
    sizes,
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
    sentence: str
    other_loss: str = ""  # the verdict by another loss; empty if there is none


def contrasts(analysis: Analysis, axis: str, other: Analysis | None = None) -> list[Contrast]:
    """Each control against the rule, at the largest size along ``axis`` that both have.

    ``other`` is the same sweep by another loss. Where its verdict differs, the sentence says so.
    """
    rule, controls = rule_of(analysis)
    own = [contrast for control in controls if (contrast := _contrast(analysis, rule, control, axis))]
    if other is None:
        return own
    by_other = {one.control: one.verdict for one in contrasts(other, axis)}
    results = []
    for one in own:
        verdict = by_other.get(one.control, NOT_RESOLVED)
        differs = "" if verdict == one.verdict else f" (by {other.loss_name}: {verdict})"
        results.append(dataclasses.replace(one, other_loss=verdict, sentence=one.sentence + differs))
    return results


def is_contrast(one: Verdict, main: Verdict, against: Iterable[Contrast]) -> bool:
    """Whether a control's verdict, that it does not train, is what the contrasts to the main one say."""
    named = {contrast.control for contrast in against if contrast.verdict == UNTRAINED}
    return one.verdict == UNTRAINED and one.axis == main.axis and one.variant in named


def _contrast(analysis: Analysis, rule: Variant, control: Variant, axis: str) -> Contrast | None:
    """``None`` if one of them was not run at the base's best x, or the rule does not train there."""
    line, of_size = analysis.along(axis), {row.size: row for row in control.rows if row is not control.base}
    rows = [row for row in (line.rows(rule.rows) if line else rule.rows) if row.size in of_size]
    ours = max(rows, key=lambda row: row.size[::-1], default=None)
    if ours is None or not isinstance(ours.regret, Estimate):
        return None
    theirs = of_size[ours.size]
    result = functools.partial(Contrast, control.name)
    if theirs.regret == UNTRAINED or theirs.optimum is None:
        return result(UNTRAINED, None, f"{control.name} does not train at {sizes([theirs], axis)}")
    if theirs.regret == transfer.DIVERGED:
        return result(SHOWN, None, f"{control.name} diverges there")
    if not isinstance(theirs.regret, Estimate):
        return None
    difference = theirs.regret - ours.regret
    if same := same_runs(analysis, control, rule, axis):
        return result(SAME, difference, same)
    low, high = difference.interval or (-math.inf, math.inf)
    verdict, text = NOT_RESOLVED, f"differs by {in_words(difference)}, which is not resolved"
    if difference.value == 0 and (difference.draws is None or not difference.draws.any()):
        verdict, text = SAME, "costs the same"
    elif low > 0:
        verdict, text = SHOWN, f"costs {in_words(difference)} more"
    elif high < 0:
        verdict, text = OPPOSITE, f"costs {in_words(-difference)} less"
    decisive = {SHOWN: ours, OPPOSITE: theirs}.get(verdict)
    if decisive and not decisive.bracketed:  # this regret may be larger than measured
        verdict, text = NOT_RESOLVED, f"{text} on this grid, at whose edge an optimum is"
    for whose, base in ((f"{rule.name}'s", rule.base), ("its", control.base)):
        if base.edge:
            verdict = NOT_RESOLVED
            text = f"is not compared, as {whose} best {analysis.scale.name} at the base is the {base.edge}"
    return result(verdict, difference, f"{control.name} {text}")


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


def headline(analysis: Analysis, own: Verdict | None, against: Sequence[Contrast]) -> str:
    """One sentence: how the rule compares with its controls along its first axis, and what keeping its rate costs.

    It is better or worse than a control if both losses say so, where there are two.
    """
    if own is None:
        return _found(analysis) or f"No verdict, which takes two sizes and several values of the {analysis.scale.name}."
    if not against:
        return own.sentence
    return in_a_sentence(_compared(own, against), own.reason, ", ".join(one.sentence for one in against))


def _found(analysis: Analysis) -> str:
    """The best x of a sweep at one size, such as the search of `depthmup tune`; empty for several sizes or one x."""
    rows = [(one.name, row, row.optimum) for one in analysis.variants for row in one.rows if row.optimum]
    found = [entry for entry in rows if entry[2].flag != opt.ONE_VALUE]
    if len({row.size for row in analysis.rows}) > 1 or not found:
        return ""
    name, row, optimum = min(found, key=lambda one: one[2].loss.value)
    scale, ends, seeds = analysis.scale, optimum.at.interval, len(row.curve.seeds)
    interval = " (95 % interval {:.3g} to {:.3g})".format(*map(scale.value, ends)) if ends else ""
    at = ", ".join(filter(None, (name, f"width {row.curve.width}, depth {row.curve.depth}")))
    best = f"The best {scale.name} at {at} is {scale.value(optimum.at.value):.4g}{interval}"
    edge = f", the {row.edge}" if row.edge else ""
    return f"{best}{edge}, n = {seeds} seed{'s' * (seeds != 1)}: a verdict on transfer takes two sizes."


def main_verdict(analysis: Analysis, judged: Iterable[Verdict]) -> Verdict | None:
    """The rule's, along its first axis."""
    rule, _ = rule_of(analysis)
    return next((one for one in judged if one.variant == rule.name), None)


def _compared(own: Verdict, against: Sequence[Contrast]) -> str:
    """The rule's claim, with those controls in it that it differs from."""
    agreed = [one for one in against if one.other_loss in ("", one.verdict)]
    better, worse = (listed([one.control for one in agreed if one.verdict == kind]) for kind in (SHOWN, OPPOSITE))
    if own.verdict == UNTRAINED or not (better or worse):
        return own.claim
    first, *others = [f"{word} than {names}" for word, names in (("better", better), ("worse", worse)) if names]
    if own.verdict in (NOT_RESOLVED, NO_EVIDENCE):  # the comparison is
        first = f"{own.variant} transfers {first.replace(' than', f' over {own.axis} than', 1)}"
    else:
        first = f"{own.claim}, {'but ' * (better != '' and own.verdict == DOES_NOT_TRANSFER)}{first}"
    return ", ".join([first, *others])


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
