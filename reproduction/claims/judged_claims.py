"""What a sweep shows about each claim of its figure: the interval of the claim's contrast against its bound."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import scipy.special

from depthmup_flax.report import verdict
from depthmup_flax.report.contrasts import same_runs
from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.transfer import UNTRAINED, Analysis, Row, Variant
from depthmup_flax.report.verdict import (
    NO_EVIDENCE,
    NOT_RESOLVED,
    OPPOSITE,
    SHOWN,
    Yardstick,
    rounded_loss,
    tolerance_of,
    yardstick,
)
from depthmup_flax.storage.sweep_records import TRAIN, Record, Sweep
from reproduction.claims.measures import (
    AT_LEAST,
    AT_MOST,
    EITHER,
    LARGEST,
    MEASURES,
    NOT_NEGATIVE,
    REGRETS,
    Measured,
    Place,
)
from reproduction.claims.power import power, rounded_power
from reproduction.claims.statements import CLAIMS, Claim, Rule, Terms

UNTRAINED_CONTROL = "the control does not train"  # so the claim holds, which says little
LEANS_AGAINST = "leans against"  # not resolved, with an estimate that violates the bound
UNDECIDED = LEANS_AGAINST, NOT_RESOLVED
_WORST_FIRST = (OPPOSITE, LEANS_AGAINST, *verdict.WORST_FIRST[1:], UNTRAINED_CONTROL)


@dataclasses.dataclass(frozen=True)
class JudgedClaim:
    """A claim and what a sweep shows about it.

    Attributes:
      verdict: `SHOWN`, `UNTRAINED_CONTROL`, `OPPOSITE`, `LEANS_AGAINST`, `NOT_RESOLVED` or `NO_EVIDENCE`, by the
        analysis's loss.
      contrast: what is measured, in words.
      estimate: ``None`` if it is unknown; infinite if a network does not train.
      bound: of the contrast, at most or at least as the rule says.
      seeds: of the sizes that it compares; 0 if there are none.
      seeds_needed: if it is not resolved, the seeds that decide four times in five; ``None`` if their number is unknown
        or above `depthmup_flax.report.verdict.MOST_SEEDS`.
      note: what limits the verdict.
      measured_by: of a regret, with the bound as tolerance.
      power: of its seeds, see `reproduction.claims.power`.
      drift: of the optimum, in words, if the claim is that it does not matter.
      other_loss: the verdict by another loss, of the name ``other_name``; empty if there is none.
      other_note: what limits that.
    """

    claim: Claim
    verdict: str
    contrast: str
    estimate: Estimate | None = None
    bound: float = 0.0
    seeds: int = 0
    seeds_needed: int | None = None
    note: str = ""
    measured_by: Yardstick | None = None
    power: float | None = None
    drift: str = ""
    other_loss: str = ""
    other_name: str = ""
    other_note: str = ""

    @property
    def shown_by_both(self) -> bool:
        """Whether both losses show it, as a headline needs."""
        return self.verdict == SHOWN == self.other_loss

    @property
    def p(self) -> float | None:
        """The one-sided p-value of the bound, by Student's t as in the intervals; at most 0.025 if it is shown.

        ``None`` if the noise is unknown or the range does not bound the number.
        """
        half = self.estimate.half_width if self.estimate else None
        if self.estimate is None or half is None or self.verdict not in (SHOWN, OPPOSITE, *UNDECIDED):
            return None
        sign, free = (1 if self.claim.rule.sense == AT_MOST else -1), self.estimate.seeds - 1
        margin = sign * (self.bound - self.estimate.value) / half * scipy.special.stdtrit(free, 0.975)
        return float(scipy.special.stdtr(free, -margin))

    @property
    def numbers(self) -> str:
        """``0.012 (0.004 to 0.02)``; empty without a finite number."""
        if self.estimate is None or not math.isfinite(self.estimate.value):
            return ""
        terms = self.claim.rule.terms
        least = 0.0 if len(terms) == 1 and terms[0][1].measure in NOT_NEGATIVE else -math.inf
        return _interval_in_words(self.estimate, least=least)

    @property
    def finding(self) -> str:
        """The contrast with its interval and the bound, and what limits them."""
        if not self.numbers:
            return f"{self.contrast}: {self.note}"
        text = f"{self.contrast} is {self.numbers}, claimed {self.claim.rule.sense} {rounded_loss(self.bound)}"
        ruler = _passing(self.measured_by, self.power) if self.measured_by else ""
        return "; ".join(filter(None, (text, self.drift, ruler, self.note)))

    @property
    def sentence(self) -> str:
        """Verdict, claim and finding; if noise leaves it open, the number of seeds that would decide."""
        decision, finding = (f"{text[0].upper()}{text[1:]}" for text in (self.verdict, self.finding))
        if self.other_loss not in ("", self.verdict):
            decision = f"{decision} (by {self.other_name}: {self.other_loss})"
        return f"{decision}: {self.claim.text} ({self.claim.source}). {finding}{self._more_seeds()}."

    def _more_seeds(self) -> str:
        if self.verdict not in UNDECIDED or self.note:
            return ""
        return f"; {_undecided(self.seeds, '', self.seeds_needed)}"


def judged(figure: str, analysis: Analysis, other: Analysis | None = None) -> list[JudgedClaim]:
    """What an analysis shows about each claim of its figure; none for a figure without claims.

    ``other`` is the same sweep by another loss. Claims about a part of training take the training loss alone.
    """
    claims = [claim for claim in CLAIMS.get(figure, ()) if analysis.loss == TRAIN or not _in_training(claim.rule)]
    results = [judged_claim(claim, analysis) for claim in claims]
    if other is None:
        return results
    by_other = {one.claim: one for one in judged(figure, other)}
    pairs = [(one, by_other.get(one.claim)) for one in results]
    named = functools.partial(dataclasses.replace, other_name=other.loss_name)
    return [named(a, other_loss=b.verdict, other_note=b.note) if b else a for a, b in pairs]


def core_minutes(records: Sequence[Record]) -> float:
    """What the runs took: wall time times devices; a CPU device is a core."""
    counts = [record.device.partition(" x ")[0] for record in records]
    devices = [int(count) if count.isdecimal() else 1 for count in counts]
    return math.fsum(record.wall_time_s * n for record, n in zip(records, devices, strict=True)) / 60


def claims_text(sweep: Sweep, analysis: Analysis, other: Analysis | None = None) -> str:
    """The claims of a sweep's figure with what its runs took, a sentence each, below a report's text; see `judged`."""
    claims = judged(sweep.info.figure, analysis, other)
    if not claims:
        return ""
    on_cores = all(record.device.endswith(" cpu") for record in sweep.records)
    cost = f"{core_minutes(sweep.records):.2g} {'core' if on_cores else 'device'}-minutes"
    return "\n".join(["", "", f"The paper's claims ({cost})", *(one.sentence for one in claims)])


def _in_training(rule: Rule) -> bool:
    return any(term.when for _, term in rule.terms)


def judged_claim(claim: Claim, analysis: Analysis) -> JudgedClaim:
    """What an analysis shows about one claim: at the largest multiple of the base's size that all its variants have.

    A claim about every size is shown if it holds at all of them; else the worst size decides.
    """
    rule = claim.rule
    named = {term.variant: _variant(analysis, term.variant) for _, term in rule.terms}
    variants = [variant for variant in named.values() if variant is not None]
    if len(variants) < len(named):
        missing = " and ".join(name for name, variant in named.items() if variant is None)
        return JudgedClaim(claim, NO_EVIDENCE, f"variant {missing}", note="not in the sweep")
    places = [Place(analysis, variant, term) for _, term in rule.terms if (variant := named[term.variant])]
    larger = sorted(m for m in set.intersection(*(set(place.rows) for place in places)) if m > 1)
    if not larger and any(term.at == LARGEST for _, term in rule.terms):
        return JudgedClaim(claim, NO_EVIDENCE, _in_words(rule.terms, places), note="one size")
    same = _copied(analysis, variants, places[0].term.axis)
    multiples = larger if rule.every else larger[-1:] or [1.0]
    at_sizes = [_judged_at(claim, [dataclasses.replace(p, multiple=m) for p in places], same) for m in multiples]
    worst = min((one.verdict for one in at_sizes), key=_WORST_FIRST.index)
    value = lambda one: one.estimate.value if one.estimate else math.inf
    return at_sizes[-1] if worst == SHOWN else max((one for one in at_sizes if one.verdict == worst), key=value)


def _judged_at(claim: Claim, places: Sequence[Place], same: str) -> JudgedClaim:
    """`judged_claim` at one size. ``same`` names a variant that repeats another's runs."""
    rule, first = claim.rule, places[0]
    seeds = min(len(row.curve.seeds) for place in places for row in place.compared)
    bound = rule.bound if rule.share is None else tolerance_of(first.variant, rule.share)
    result = functools.partial(JudgedClaim, claim, contrast=_in_words(rule.terms, places), bound=bound, seeds=seeds)
    if same:
        return result(verdict=NO_EVIDENCE, note=same)
    if rule.share is not None and not bound / rule.share > 0:
        initial_loss = f"{rounded_loss(first.variant.initial_loss)}, that {first.analysis.initial_loss_name}"
        return result(verdict=NO_EVIDENCE, note=f"the base's {first.analysis.loss_name} is not below {initial_loss}")
    measured = [MEASURES[place.term.measure](place) for place in places]
    total = _total([(sign, one) for (sign, _), one in zip(rule.terms, measured, strict=True)])
    decision = _decide(total, rule.sense, bound)
    result = functools.partial(result, estimate=total.estimate, note=total.note)
    if rule.share is None or first.term.measure not in REGRETS or not _is_finite(total):
        return result(verdict=decision.verdict, seeds_needed=decision.seeds)
    scale, curve = first.analysis.scale, first.row.curve
    most = first.variant.most
    ruler, known = yardstick(scale, curve, bound, most), power(scale, first.chosen_on, curve, bound, most)
    decision = verdict.unless_empty(decision, ruler)
    moved = drift(first.analysis, first.variant, first.row, first.term.axis)
    return result(verdict=decision.verdict, seeds_needed=decision.seeds, measured_by=ruler, power=known, drift=moved)


def _variant(analysis: Analysis, parts: str) -> Variant | None:
    """The first variant whose name has all parts."""
    wanted = set(filter(None, parts.split(", ")))
    return next((variant for variant in analysis.variants if wanted <= set(variant.name.split(", "))), None)


def _interval_in_words(estimate: Estimate, *, least: float = -math.inf) -> str:
    """``0.003 (0 to 0.016)``; ``least`` is the smallest possible value."""
    ends = estimate.interval
    interval = f" ({rounded_loss(max(ends[0], least))} to {rounded_loss(ends[1])})" if ends else ""
    return f"{rounded_loss(estimate.value)}{interval}"


def _in_words(terms: Terms, places: Sequence[Place]) -> str:
    """``regret of mup minus that of depth_mup at depth 24``."""
    wheres = [place.where for place in places]
    shared = len(set(wheres)) == 1
    words: list[str] = []
    for (sign, term), place, where in zip(terms, places, wheres, strict=True):
        alike = (term.measure, term.when) == (terms[0][1].measure, terms[0][1].when)
        what = place.what if not words or not alike else f"that{place.of}"
        words += ["" if not words else "plus" if sign > 0 else "minus", what, "" if shared else where]
    return " ".join(filter(None, [*words, wheres[0] if shared else ""]))


def _total(parts: Sequence[tuple[int, Measured]]) -> Measured:
    """The signed sum. A network that does not train decides, unless another one opposes it."""
    note = "; ".join(dict.fromkeys(part.note for _, part in parts if part.note))
    signed = [part if sign > 0 else -part for sign, part in parts]
    estimates = [part.estimate for part in signed if part.estimate is not None]
    infinite = {estimate.value for estimate in estimates if math.isinf(estimate.value)}
    limits = {part.limit for part in signed if part.limit}
    if len(infinite) == 1:
        least = min(estimate.seeds for estimate in estimates)
        return Measured(Estimate(infinite.pop(), None, least), UNTRAINED if UNTRAINED in limits else "", note)
    if infinite or len(estimates) < len(parts):
        return Measured(None, note=note)
    limit = limits.pop() if len(limits) == 1 else EITHER if limits else ""
    return Measured(functools.reduce(lambda total, other: total - (-other), estimates), limit, note)


def _is_finite(total: Measured) -> bool:
    return total.estimate is not None and math.isfinite(total.estimate.value)


def _decide(total: Measured, sense: str, bound: float) -> verdict.Judgment:
    """`verdict.judge`; not resolved where the measured range bounds the number on one side only."""
    if total.estimate is None or math.isnan(bound):
        return verdict.Judgment(NOT_RESOLVED)
    sign, other = (1, AT_LEAST) if sense == AT_MOST else (-1, AT_MOST)
    if math.isinf(total.estimate.value):
        shown = UNTRAINED_CONTROL if total.limit == UNTRAINED else SHOWN
        return verdict.Judgment(shown if sign * total.estimate.value < 0 else OPPOSITE)
    decision = verdict.judge(total.estimate if sign > 0 else -total.estimate, sign * bound)
    against = sign * (total.estimate.value - bound) > 0
    if total.limit in ((sense, EITHER) if against else (other, EITHER)):
        return verdict.Judgment(NOT_RESOLVED)
    if decision.verdict != NOT_RESOLVED:
        return decision
    return verdict.Judgment(LEANS_AGAINST if against else NOT_RESOLVED, None if total.limit else decision.seeds)


def _copied(analysis: Analysis, variants: Sequence[Variant], axis: str) -> str:
    """Names a variant that repeats an earlier one's runs along an axis; empty without one."""
    pairs = [
        (variant, earlier) for variant in variants for earlier in analysis.variants[: analysis.variants.index(variant)]
    ]
    return next(filter(None, (same_runs(analysis, *pair, axis) for pair in pairs)), "")


def _passing(ruler: Yardstick, power: float | None) -> str:
    """``1.3 of the grid's 8 octaves would pass, power 0.98``."""
    known = "" if power is None else f", power {rounded_power(power)}"
    return f"{ruler.passing:.2g} of the grid's {ruler.grid:.2g} {ruler.unit} would pass{known}"


def _undecided(seeds: int, what: str, needed: int | None) -> str:
    """``3 seeds do not decide whether ..., 5 would``; ``needed`` is from `seeds_needed`."""
    if seeds == 1:
        return f"1 seed does not decide{what}"
    return f"{seeds} seeds do not decide{what}, " + (f"{needed} would" if needed else f"nor would {verdict.MOST_SEEDS}")


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
