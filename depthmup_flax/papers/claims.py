"""The papers' claims as contrasts: a rule per claim, and what the interval of its contrast shows.

`CLAIMS` has them by figure, close to the papers' words. TP6 is arXiv:2310.02244, B24 arXiv:2309.16620. Where the paper
gives no number, the bound is 0 for a comparison, `depthmup_flax.report.yardstick.TOLERANCE` of what the base learned
for "transfers" and "does not matter", and the middle between two exponents for a choice between them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from depthmup_flax.papers.measures import (
    AT_LEAST,
    AT_MOST,
    BASE,
    BOTH,
    EITHER,
    LARGEST,
    MEASURES,
    NOT_NEGATIVE,
    REGRETS,
    Measured,
    Place,
    Term,
    Window,
)
from depthmup_flax.records.table import TRAIN
from depthmup_flax.report import tables, verdict
from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.same_runs import same_runs
from depthmup_flax.report.transfer import UNTRAINED, Analysis, Variant
from depthmup_flax.report.verdict import NO_EVIDENCE, NOT_RESOLVED, OPPOSITE, SHOWN
from depthmup_flax.report.words import drift, in_words, rounded_loss
from depthmup_flax.report.yardstick import TOLERANCE, Yardstick, tolerance_of
from depthmup_flax.util.types import Json

UNTRAINED_CONTROL = "the control does not train"  # so the claim holds, which says little
_WORST_FIRST = (*verdict.WORST_FIRST, UNTRAINED_CONTROL)
Terms = tuple[tuple[int, Term], ...]  # signs and numbers


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a claim says: the sum of ``terms`` is at most or at least a bound.

    Attributes:
      sense: `AT_MOST` or `AT_LEAST`.
      bound: of the sum; if ``share`` is given, that share of what the base learned instead.
      every: whether it must hold at every size above the base's, or at the largest alone.
    """

    terms: Terms
    sense: str
    bound: float = 0.0
    share: float | None = None
    every: bool = False


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of a paper; ``id`` as in docs/reproduction.md, ``source`` is the figure."""

    id: str
    source: str
    text: str
    rule: Rule


def transfers(variant: str = "", axis: str = "depth") -> Rule:
    """Keeping the base's best x costs little at every larger size."""
    return dataclasses.replace(_small(Term("regret", variant, axis)), every=True)


def _small(term: Term) -> Rule:
    return Rule(((1, term),), AT_MOST, share=TOLERANCE)


def costs_more(control: str, rule: str, axis: str = "depth") -> Rule:
    """Keeping the base's best x costs the control more than the rule."""
    return Rule(((1, Term("regret", control, axis)), (-1, Term("regret", rule, axis))), AT_LEAST)


def moves_more(control: str, rule: str, axis: str = "depth") -> Rule:
    """The best x of the control follows a steeper power of size than the rule's."""
    return Rule(((1, Term("absolute exponent", control, axis)), (-1, Term("absolute exponent", rule, axis))), AT_LEAST)


def lower_loss(a: str, b: str) -> Rule:
    """The lowest loss of a is below b's at the largest size."""
    return Rule(((1, Term("lowest loss", a)), (-1, Term("lowest loss", b))), AT_MOST)


def falls(variant: str = "") -> Rule:
    """The lowest loss at the largest size is below the base's."""
    return Rule(_growth(variant), AT_MOST)


def rises(variant: str = "", when: Window | None = None) -> Rule:
    """The lowest loss at the largest size is above the base's, in a part of training."""
    return Rule(_growth(variant, when), AT_LEAST)


def gains_more(a: str, b: str) -> Rule:
    """The lowest loss falls more from the base to the largest size in a than in b."""
    return Rule((*_growth(a), *((-sign, term) for sign, term in _growth(b))), AT_MOST)


def _growth(variant: str, when: Window | None = None) -> Terms:
    return (1, Term("lowest loss", variant, when=when)), (-1, Term("lowest loss", variant, at=BASE, when=when))


def exponent_at_least(bound: float, variant: str = "", when: Window | None = None) -> Rule:
    """The best x follows at least that power of depth."""
    return Rule(((1, Term("exponent", variant, when=when)),), AT_LEAST, bound)


def exponent_at_most(bound: float, variant: str = "", when: Window | None = None) -> Rule:
    """The best x follows at most that power of depth."""
    return Rule(((1, Term("exponent", variant, when=when)),), AT_MOST, bound)


Statement = tuple[str, Rule]  # a claim's text and rule


def _claims(claim_id: str, source: str, *statements: Statement) -> tuple[Claim, ...]:
    return tuple(Claim(claim_id, source, *statement) for statement in statements)


def _better(control: str, name: str, axis: str = "depth") -> Statement:
    rule = costs_more(control, "depth_mup", axis)
    return f"the best rate of Depth-muP transfers better over {axis} than that of {name}", rule


_OVER_DEPTH = "the best rate of Depth-muP transfers over depth", transfers("depth_mup")
_OVER_WIDTH = "the best rate of Depth-muP transfers over width", transfers("depth_mup", "width")
_DEEPER_IS_BETTER = "under Depth-muP the loss improves with depth", falls("depth_mup")
_BLOCKS_ALONE = (
    "scaling only the blocks, the best rate shifts more with depth",
    moves_more("block_only", "depth_mup"),
)
_DEEPER_IS_WORSE = "without depth scaling (SP) deeper is worse, each at its best rate", rises("sp")
_ODE = _claims(
    "ode-sde",
    "TP6 Fig. 11",
    ("at alpha = 1 the best rate rises with depth", exponent_at_least(0.0, "ode")),
    ("the best rate transfers better over depth under Depth-muP than at alpha = 1", costs_more("ode", "depth_mup")),
    ("Depth-muP has the lower loss", lower_loss("depth_mup", "ode")),
)
_NO_NORM = "norm=none, constant"
_THIRD_OF_20_EPOCHS = (0.10, 0.15)
_EARLY, _MIDDLE = (0.0, 0.25), (0.375, 0.625)  # before and around the middle of training
_MIDDLE_OF_0_AND_MINUS_HALF = -0.25

# The figure of a sweep -> its claims.
CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "lr-width-depth (MLP)": (
        *_claims(
            "lr-width-depth",
            "TP6 Fig. 10",
            _OVER_DEPTH,
            _DEEPER_IS_BETTER,
            _BLOCKS_ALONE,
            _better("mup", "muP"),
            _better("sp", "SP"),
            _DEEPER_IS_WORSE,
        ),
        *_claims("lr-width-depth", "B24 Fig. 1, B.2", _OVER_WIDTH, _better("sp", "SP", "width")),
    ),
    "lr-width-depth (trained ends)": (
        *_claims(
            "lr-width-depth",
            "TP6 Fig. 10",
            _OVER_DEPTH,
            _OVER_WIDTH,
            ("the best rate of Depth-muP transfers over width and depth together", transfers("depth_mup", BOTH)),
            _DEEPER_IS_BETTER,
            _BLOCKS_ALONE,
            _better("block_only", "block scaling alone"),
            _better("mup", "muP"),
            _better("sp", "SP"),
            _DEEPER_IS_WORSE,
            _better("sp", "SP", "width"),
        ),
        *_ODE,
    ),
    "lr-width-depth (conv)": _claims(
        "lr-width-depth",
        "B24 Fig. 1, B.2",
        _OVER_DEPTH,
        _OVER_WIDTH,
        _better("mup", "muP"),
        ("the best rate of muP shifts more with depth than that of Depth-muP", moves_more("mup", "depth_mup")),
        _better("sp", "SP"),
        _better("sp", "SP", "width"),
    ),
    "norm": tuple(
        Claim(
            "norm",
            f"B24 Fig. {figure}",
            f"with {norm.capitalize()}Norm the best rate transfers better over depth with the 1/sqrt(L) scaling",
            costs_more(f"{norm}, mup", f"{norm}, depth_mup"),
        )
        for norm, figure in (("batch", "2"), ("layer", "B.4"))
    ),
    "vit": (
        *_claims(
            "vit",
            "B24 Fig. 3",
            ("the best rate transfers without norm, with scaling", transfers(f"{_NO_NORM}, depth_mup")),
            (
                "the best rate transfers with a cosine, without norm, with scaling",
                transfers("norm=none, cosine, depth_mup"),
            ),
            ("the best rate transfers with LayerNorm and scaling", transfers("layer, depth_mup")),
            ("the best rate transfers with LayerNorm, without scaling", transfers("layer, mup")),
            ("with LayerNorm, depth helps more with the scaling", gains_more("layer, depth_mup", "layer, mup")),
        ),
        Claim(
            "vit",
            "B24 section 1",
            "without norm the best rate transfers better over depth with the scaling",
            costs_more(f"{_NO_NORM}, mup", f"{_NO_NORM}, depth_mup"),
        ),
    ),
    **{
        f"other-hparams ({name})": _claims(
            "other-hparams", f"B24 Fig. {figure}", (f"the best {name} transfers over depth", transfers())
        )
        for name, figure in (("momentum", "4"), ("gamma0", "4"), ("weight decay", "B.8"))
    },
    "trade-off": _claims(
        "trade-off",
        "B24 Fig. B.1",
        (
            "at the base's depth the loss falls with the number of parameters",
            Rule(((1, Term("power of the number of parameters", at=BASE)),), AT_MOST),
        ),
        *(
            (
                f"at equal numbers of parameters depth 12 is better than the {size} depth",
                Rule(((1, Term("loss at the depth next to 12")), (-1, Term(f"loss at the {size} depth"))), AT_MOST),
            )
            for size in ("smallest", "largest")
        ),
    ),
    "how-long": _claims(
        "how-long",
        "B24 Fig. B.3",
        *(
            (
                f"the best rate is determined after 3 of 20 epochs, in the {network}",
                _small(Term("regret of the early choice", at=at, when=_THIRD_OF_20_EPOCHS)),
            )
            for network, at in (("base", BASE), ("deepest network", LARGEST))
        ),
    ),
    "imagenet": _claims("imagenet", "B24 Fig. B.6", ("the best rate transfers over depth", transfers())),
    "ode-sde": _ODE,
    "pre-nonlin": _claims(
        "pre-nonlin",
        "TP6 Fig. 2",
        ("with the nonlinearity first the best rate transfers over depth", transfers("pre_nonlin=True")),
        (
            "with the nonlinearity first depth gives no gain",
            dataclasses.replace(rises("pre_nonlin=True"), share=-TOLERANCE),
        ),
        ("with the nonlinearity first the loss is higher", lower_loss("pre_nonlin=False", "pre_nonlin=True")),
    ),
    "abs": _claims(
        "abs",
        "TP6 Fig. 3",
        ("the absolute value has a lower loss than ReLU in deep networks", lower_loss("abs", "relu")),
    ),
    "block-depth": (
        Claim(
            "block-depth",
            "TP6 Fig. 4",
            "two layers in a branch are worse than one at equal numbers of layers",
            lower_loss("block_depth=1", "block_depth=2"),
        ),
        Claim(
            "block-depth",
            "TP6 Fig. 6",
            "with two layers in a branch the best rate shifts more with depth",
            moves_more("block_depth=2", "block_depth=1"),
        ),
    ),
    "block-depth (heat maps)": _claims(
        "block-depth",
        "TP6 Fig. 7",
        (
            "over rate and multiplier the slope of the best region rises with depth",
            Rule(((1, Term("angle of the best region")), (-1, Term("angle of the best region", at=BASE))), AT_LEAST),
        ),
    ),
    "layernorm": _claims("layernorm", "TP6 Fig. 12", _OVER_DEPTH, _DEEPER_IS_BETTER, _BLOCKS_ALONE),
    "block-multiplier": _claims(
        "block-multiplier", "TP6 Fig. 13", ("the best multiplier transfers over depth", transfers())
    ),
    "megatron": (
        *_claims(
            "megatron",
            "TP6 Fig. 15",
            ("deeper is worse initially", rises("depth_mup", _EARLY)),
            ("deeper is better at the end", falls("depth_mup")),
        ),
        *_claims(
            "megatron",
            "TP6 Fig. 16",
            (
                "in the middle of training the best rate is invariant, rather than 1/sqrt(L)",
                exponent_at_least(_MIDDLE_OF_0_AND_MINUS_HALF, "mup", _MIDDLE),
            ),
            (
                "at the end of training the best rate scales as 1/sqrt(L), rather than being invariant",
                exponent_at_most(_MIDDLE_OF_0_AND_MINUS_HALF, "mup"),
            ),
        ),
        Claim(
            "megatron",
            "TP6 section 10.3",
            "with 1/sqrt(L) scaling the best rate transfers at the end",
            transfers("depth_mup"),
        ),
    ),
    "megatron (multiplier)": _claims(
        "megatron",
        "TP6 Fig. 14",
        ("transformers are insensitive to the branch multiplier (a factor of two)", _small(Term("cost of an octave"))),
    ),
}


@dataclasses.dataclass(frozen=True)
class JudgedClaim:
    """A claim and what a sweep shows about it.

    Attributes:
      verdict: `SHOWN`, `UNTRAINED_CONTROL`, `OPPOSITE`, `NOT_RESOLVED` or `NO_EVIDENCE`, by the analysis's loss.
      contrast: what is measured, in words.
      estimate: ``None`` if it is unknown; infinite if a network does not train.
      bound: of the contrast, at most or at least as the rule says.
      seeds: of the sizes that it compares; 0 if there are none.
      seeds_needed: if it is not resolved, the seeds that decide four times in five; ``None`` if their number is unknown
        or above `depthmup_flax.report.verdict.MOST_SEEDS`.
      note: what limits the verdict.
      measured_by: of a regret, with the bound as tolerance.
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
    drift: str = ""
    other_loss: str = ""
    other_name: str = ""
    other_note: str = ""

    @property
    def shown_by_both(self) -> bool:
        """Whether both losses show it, as a headline needs."""
        return self.verdict == SHOWN == self.other_loss

    @property
    def numbers(self) -> str:
        """``0.012 (0.004 to 0.02)``; empty without a finite number."""
        if self.estimate is None or not math.isfinite(self.estimate.value):
            return ""
        terms = self.claim.rule.terms
        least = 0.0 if len(terms) == 1 and terms[0][1].measure in NOT_NEGATIVE else -math.inf
        return in_words(self.estimate, least=least)

    @property
    def finding(self) -> str:
        """The contrast with its interval and the bound, and what limits them."""
        if not self.numbers:
            return f"{self.contrast}: {self.note}"
        text = f"{self.contrast} is {self.numbers}, claimed {self.claim.rule.sense} {rounded_loss(self.bound)}"
        ruler = str(self.measured_by) if self.measured_by else ""
        return "; ".join(filter(None, (text, self.drift, ruler, self.note)))

    @property
    def sentence(self) -> str:
        """Verdict, claim and finding; if noise leaves it open, the number of seeds that would decide."""
        decision, finding = (f"{text[0].upper()}{text[1:]}" for text in (self.verdict, self.finding))
        if self.other_loss not in ("", self.verdict):
            decision = f"{decision} (by {self.other_name}: {self.other_loss})"
        return f"{decision}: {self.claim.text} ({self.claim.source}). {finding}{self._more_seeds()}."

    def _more_seeds(self) -> str:
        if self.verdict != NOT_RESOLVED or self.note:
            return ""
        return f"; {verdict.undecided(self.seeds, '', self.seeds_needed)}"


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


def as_data(figure: str, analysis: Analysis, other: Analysis | None = None) -> list[Json]:
    """`judged` as JSON, for `depthmup_flax.report.make_report`."""
    return [_claim_data(one) for one in judged(figure, analysis, other)]


def _claim_data(one: JudgedClaim) -> Json:
    return {
        "id": one.claim.id,
        "source": one.claim.source,
        "claim": one.claim.text,
        "verdict": one.verdict,
        "verdict_by_other_loss": one.other_loss,
        "contrast": one.contrast,
        **tables.estimate_data(one.estimate),
        "claimed": one.claim.rule.sense,
        "bound": one.bound,
        "seeds": one.seeds,
        "seeds_needed": one.seeds_needed,
        "power": one.measured_by.power if one.measured_by else None,
        "note": one.note,
        "sentence": one.sentence,
    }


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
        return JudgedClaim(claim, NOT_RESOLVED, f"variant {missing}", note="not in the sweep")
    places = [Place(analysis, variant, term) for _, term in rule.terms if (variant := named[term.variant])]
    larger = sorted(m for m in set.intersection(*(set(place.rows) for place in places)) if m > 1)
    if not larger and any(term.at == LARGEST for _, term in rule.terms):
        return JudgedClaim(claim, NOT_RESOLVED, _in_words(rule.terms, places), note="one size")
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
        untaught = f"{rounded_loss(first.variant.untaught)}, that {first.analysis.untaught_name}"
        return result(verdict=NO_EVIDENCE, note=f"the base's {first.analysis.loss_name} is not below {untaught}")
    measured = [MEASURES[place.term.measure](place) for place in places]
    total = _total([(sign, one) for (sign, _), one in zip(rule.terms, measured, strict=True)])
    decision = _decide(total, rule.sense, bound)
    result = functools.partial(result, estimate=total.estimate, note=total.note)
    if rule.share is None or first.term.measure not in REGRETS or not _is_finite(total):
        return result(verdict=decision.verdict, seeds_needed=decision.seeds)
    ruler = first.yardstick(bound)
    decision = verdict.unless_empty(decision, ruler)
    moved = drift(first.analysis, first.variant, first.row, first.term.axis)
    return result(verdict=decision.verdict, seeds_needed=decision.seeds, measured_by=ruler, drift=moved)


def _variant(analysis: Analysis, parts: str) -> Variant | None:
    """The first variant whose name has all parts."""
    wanted = set(filter(None, parts.split(", ")))
    return next((variant for variant in analysis.variants if wanted <= set(variant.name.split(", "))), None)


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
    sign = 1 if sense == AT_MOST else -1
    if math.isinf(total.estimate.value):
        shown = UNTRAINED_CONTROL if total.limit == UNTRAINED else SHOWN
        return verdict.Judgment(shown if sign * total.estimate.value < 0 else OPPOSITE)
    decision = verdict.judge(total.estimate if sign > 0 else -total.estimate, sign * bound)
    other = AT_LEAST if sense == AT_MOST else AT_MOST
    unsure = {SHOWN: (other, EITHER), OPPOSITE: (sense, EITHER)}.get(decision.verdict, (AT_MOST, AT_LEAST, EITHER))
    return verdict.Judgment(NOT_RESOLVED) if total.limit in unsure else decision


def _copied(analysis: Analysis, variants: Sequence[Variant], axis: str) -> str:
    """Names a variant that repeats an earlier one's runs along an axis; empty without one."""
    pairs = [
        (variant, earlier) for variant in variants for earlier in analysis.variants[: analysis.variants.index(variant)]
    ]
    return next(filter(None, (same_runs(analysis, *pair, axis) for pair in pairs)), "")
