"""Verdicts: whether an interval shows a claim, whether a rate transfers, and the sentence that says so."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence

import scipy.special

from depthmup_flax.report import optimum as opt
from depthmup_flax.report import transfer
from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.same_runs import same_runs
from depthmup_flax.report.transfer import Analysis, Row, Variant

SHOWN, OPPOSITE, NOT_RESOLVED, SAME = "shown", "opposite", "not resolved", "the same"
TRANSFERS, DOES_NOT_TRANSFER = "transfers", "does not transfer"
# A regret below this share of the base's lowest loss is small.
TOLERANCE = 0.01
POWER = 0.8
MOST_SEEDS = 100
_ROUNDS_TO_0 = 5e-5  # a loss is printed with four digits
_RULE = "depth_mup"  # a sweep is about the first variant of this preset that has a control, if it has any


@dataclasses.dataclass(frozen=True)
class Judgment:
    """A verdict on a bound."""

    verdict: str  # SHOWN, OPPOSITE or NOT_RESOLVED
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
class Contrast:
    """A control against the rule at the largest size: regret of the control minus the rule's."""

    control: str
    verdict: str  # SHOWN if the control costs more, OPPOSITE if less, NOT_RESOLVED; SAME if its cost or runs are equal
    estimate: Estimate | None  # None if the control does not train, or diverges at the base's optimum
    sentence: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether one variant's best x at the base is good at other sizes along ``axis``."""

    variant: str
    axis: str  # depth, width, or "width and depth"
    row: Row  # the size that decides: the largest, or the worst
    verdict: str  # TRANSFERS, DOES_NOT_TRANSFER, NOT_RESOLVED or transfer.UNTRAINED
    tolerance: float  # the regret that counts as small, in units of the loss
    seeds_needed: int | None  # if it is not resolved
    claim: str  # in words, as the reason
    reason: str

    @property
    def sentence(self) -> str:
        """Claim and reason."""
        return _sentence(self.claim, self.reason)


def _sentence(claim: str, *reasons: str) -> str:
    text = f"{claim}: {'; '.join(reasons)}."
    return text[0].upper() + text[1:] if text.startswith(("the ", "not ")) else text


def verdicts(analysis: Analysis, tolerance: float = TOLERANCE) -> list[Verdict]:
    """One per variant and axis with more than one size; ``tolerance`` is a share of the base's lowest loss."""
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
    assert base.optimum is not None
    tuned, tolerance = f"the {name} tuned at {_sizes([base], axis)}", share * abs(base.optimum.loss.value)
    by_size = sorted(rows, key=lambda row: row.size[::-1])  # by depth, then width
    untrained = [row for row in by_size if row.regret == transfer.UNTRAINED or row.optimum is None]
    diverged = [row for row in by_size if row.regret == transfer.DIVERGED and row.optimum is not None]
    known = [(row, row.regret) for row in by_size if isinstance(row.regret, Estimate)]
    result = lambda row, verdict, reason, seeds=None: Verdict(
        variant.name, axis, row, verdict, tolerance, seeds, _claim(verdict, variant.name or f"the {name}", axis), reason
    )
    if untrained:
        why = f"at {_sizes(untrained, axis)} no {name} brings the loss below twice the base's"
        return result(untrained[-1], transfer.UNTRAINED, why)
    if diverged:
        return result(diverged[-1], DOES_NOT_TRANSFER, f"{tuned} diverges at {_sizes(diverged, axis)}")
    if not known:
        return result(by_size[-1], NOT_RESOLVED, f"{tuned} was not run at {_sizes(by_size, axis)}")
    if base.edge:
        return result(by_size[-1], NOT_RESOLVED, f"{tuned} is the {base.edge}: extend the grid")
    judged = [(row, regret, judge(regret, tolerance)) for row, regret in known]
    worse = [one for one in judged if one[2].verdict == OPPOSITE]
    unclear = [one for one in judged if one[2].verdict == NOT_RESOLVED]
    row, regret, judgment = max(worse or unclear or judged[-1:], key=lambda one: one[1].value)
    cost = in_words(regret, least=0.0, level="95 %: ")
    costs = f"{tuned} costs {cost} in {analysis.loss_name} at {_sizes([row], axis)}{_drift(row, analysis)}"
    if worse:
        return result(row, DOES_NOT_TRANSFER, costs)
    outside = [one for one, _ in known if not one.bracketed]
    if outside:  # there the regret is only known from below
        return result(row, NOT_RESOLVED, f"{costs}; the optimum is at the edge of the grid at {_sizes(outside, axis)}")
    if unclear:
        what = f" whether that is below {100 * share:.3g} % of the base's loss"
        more = undecided(regret.seeds, what, judgment.seeds)
        return result(row, NOT_RESOLVED, f"{costs}; {more}", judgment.seeds)
    return result(row, TRANSFERS, costs)


def _claim(verdict: str, name: str, axis: str) -> str:
    texts = {
        transfer.UNTRAINED: f"{name} does not train",
        NOT_RESOLVED: f"not resolved whether {name} transfers over {axis}",
    }
    return texts.get(verdict, f"{name} {verdict} over {axis}")


def contrasts(analysis: Analysis, axis: str) -> list[Contrast]:
    """Each control against the rule, at the largest size along ``axis`` that both have."""
    rule, controls = rule_of(analysis)
    compared = (_contrast(analysis, rule, control, axis) for control in controls)
    return [contrast for contrast in compared if contrast is not None]


def is_contrast(one: Verdict, main: Verdict, against: Iterable[Contrast]) -> bool:
    """Whether a control's verdict, that it does not train, is what the contrasts to the main one say."""
    named = {contrast.control for contrast in against if contrast.estimate is None}
    return one.verdict == transfer.UNTRAINED and one.axis == main.axis and one.variant in named


def _contrast(analysis: Analysis, rule: Variant, control: Variant, axis: str) -> Contrast | None:
    """``None`` if one of them was not run at the base's best x, or the rule does not train there."""
    pair = _largest_pair(analysis, rule, control, axis)
    if pair is None:
        return None
    ours, theirs = pair
    if not isinstance(ours.regret, Estimate):
        return None
    result = functools.partial(Contrast, control.name)
    if theirs.regret == transfer.UNTRAINED or theirs.optimum is None:
        return result(SHOWN, None, f"{control.name} does not train at {_sizes([theirs], axis)}")
    if theirs.regret == transfer.DIVERGED:
        return result(SHOWN, None, f"{control.name} diverges there")
    if not isinstance(theirs.regret, Estimate):
        return None
    difference = theirs.regret - ours.regret
    if same := same_runs(analysis, control, rule, axis):
        return result(SAME, difference, same)
    verdict, text = _compared_costs(difference)
    decisive = {SHOWN: ours, OPPOSITE: theirs}.get(verdict)
    if decisive and not decisive.bracketed:  # this regret may be larger than measured
        verdict, text = NOT_RESOLVED, f"{text} on this grid, at whose edge an optimum is"
    for whose, base in ((f"{rule.name}'s", rule.base), ("its", control.base)):
        if base.edge:
            verdict = NOT_RESOLVED
            text = f"is not compared, as {whose} best {analysis.scale.name} at the base is the {base.edge}"
    return result(verdict, difference, f"{control.name} {text}")


def _compared_costs(estimate: Estimate) -> tuple[str, str]:
    """What the interval of a difference shows, and that in words."""
    ends = estimate.interval
    if estimate.value == 0 and (estimate.draws is None or not estimate.draws.any()):
        return SAME, "costs the same"
    if ends and ends[0] > 0:
        return SHOWN, f"costs {in_words(estimate)} more"
    if ends and ends[1] < 0:
        return OPPOSITE, f"costs {in_words(-estimate)} less"
    return NOT_RESOLVED, f"differs by {in_words(estimate)}, which is not resolved"


def rule_of(analysis: Analysis) -> tuple[Variant, list[Variant]]:
    """The variant that the sweep is about, and its controls.

    A control has another preset, and otherwise differs from the rule at most in numbers, such as the branch multiplier
    that goes with the preset. If no variant has the rule's preset, a control differs in one word.
    """
    candidates = [variant for variant in analysis.variants if _RULE in _words(variant)] or list(analysis.variants)
    pairs = [(one, [other for other in analysis.variants if _is_control(one, other)]) for one in candidates]
    return next((pair for pair in pairs if pair[1]), pairs[0])


def _is_control(rule: Variant, other: Variant) -> bool:
    ours, theirs = _words(rule), _words(other)
    return len(ours - theirs) == len(theirs - ours) == 1 and (_RULE not in ours or _RULE not in theirs)


def _words(variant: Variant) -> set[str]:
    """``batch, depth_mup, branch_multiplier=1.06`` -> its parts that are not numbers."""
    words = set()
    for part in variant.name.split(", "):
        try:
            float(part.rpartition("=")[2])
        except ValueError:
            words.add(part)
    return words


def headline(analysis: Analysis, judged: Iterable[Verdict]) -> str:
    """One sentence: how the rule compares with its controls along its first axis, and what keeping its rate costs."""
    own = main_verdict(analysis, judged)
    if own is None:
        return _found(analysis) or f"No verdict, which takes two sizes and several values of the {analysis.scale.name}."
    against = contrasts(analysis, own.axis)
    if not against:
        return own.sentence
    return _sentence(_compared(own, against), own.reason, ", ".join(one.sentence for one in against))


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
    better, worse = (_listed([one.control for one in against if one.verdict == kind]) for kind in (SHOWN, OPPOSITE))
    if own.verdict == transfer.UNTRAINED or not (better or worse):
        return own.claim
    first, *others = [f"{word} than {names}" for word, names in (("better", better), ("worse", worse)) if names]
    if own.verdict == NOT_RESOLVED:  # the comparison is
        first = f"{own.variant} transfers {first.replace(' than', f' over {own.axis} than', 1)}"
    else:
        first = f"{own.claim}, {'but ' * (better != '' and own.verdict == DOES_NOT_TRANSFER)}{first}"
    return ", ".join([first, *others])


def _listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _largest_pair(analysis: Analysis, rule: Variant, control: Variant, axis: str) -> tuple[Row, Row] | None:
    line = analysis.along(axis)
    rows = line.rows(rule.rows) if line else rule.rows
    theirs = {row.size: row for row in control.rows if row is not control.base}
    pairs = [(row, theirs[row.size]) for row in rows if row.size in theirs]
    return max(pairs, key=lambda pair: pair[0].size[::-1], default=None)


def _sizes(rows: Sequence[Row], axis: str) -> str:
    if axis == "width and depth":
        return ", ".join(f"width {row.curve.width} depth {row.curve.depth}" for row in rows)
    return f"{axis} " + " and ".join(str(row.curve.size(axis)) for row in rows)


def _drift(row: Row, analysis: Analysis) -> str:
    if row.shift is None:
        return ""
    bound = {"<=": "at most ", ">=": "at least "}.get(row.bound, "")
    ends = row.shift.interval
    digits = 1 if analysis.scale.log else 2  # octaves, or the hyperparameter's own units
    text = lambda value: f"{round(value, digits) + 0.0:+.{digits}f}"  # + 0.0: no minus before a zero
    interval = f" ({text(ends[0])} to {text(ends[1])})" if ends and not row.bound else ""
    return f"; the optimum drifts by {bound}{text(row.shift.value)} {analysis.scale.unit}{interval}"


def undecided(seeds: int, what: str, needed: int | None) -> str:
    """``3 seeds do not decide whether ..., 5 would``; ``needed`` is from `seeds_needed`."""
    if seeds == 1:
        return f"1 seed does not decide{what}"
    return f"{seeds} seeds do not decide{what}, " + (f"{needed} would" if needed else f"nor would {MOST_SEEDS}")


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
