"""What multiplies products of two activations, as of queries and keys, over the base model's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence

from depthmup_flax.auditing.relative_factors import close
from depthmup_flax.rule.factor import Factor
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.scores import Scores
from depthmup_flax.util.groups import grouped, series


@dataclasses.dataclass(frozen=True)
class ScoreFactors:
    """A product of two activations, and its factor relative to the base model."""

    product: Scores
    base_size: int  # of the contracted dimension in the base model
    factor: float  # NaN: unknown
    wanted: Factor  # `Parametrization.attention_scale` over that of the base model

    @property
    def is_growing(self) -> bool:
        """Whether more products are summed than in the base model, and no softmax reads them."""
        return not self.product.in_softmax and self.product.size != self.base_size

    def is_right(self, rule: Parametrization) -> bool:
        """Whether the factor is the scale of attention under a rule."""
        return close(self.factor, float(self.wanted.under(rule)))

    def is_in_code(self, rule: Parametrization) -> bool:
        """Whether the code has a factor of the width that a rule wants, where that is not 1."""
        grows = self.base_size != self.product.size
        return grows and not close(self.factor, self.wanted.constant) and self.is_right(rule)


def score_factors(facts: Traced, base: Traced) -> list[ScoreFactors]:
    """All products of two activations, each beside one of the same weights in the base model."""
    alike = grouped(base.scores, _weights_of)
    seen: set[Hashable] = set()
    result = []
    for scores in facts.scores:
        same_weights = alike.get(_weights_of(scores), [])
        nth = scores.nth % (1 + max((base_scores.nth for base_scores in same_weights), default=0))
        candidates = [base_scores for base_scores in same_weights if base_scores.nth == nth]
        key = (_weights_of(scores), nth)
        result.append(_compared(scores, candidates, key in seen))
        seen.add(key)
    return result


def apart(scores: Sequence[ScoreFactors], facts: Traced) -> set[str]:
    """The parameters that read products over a growing dimension, which are judged alone."""
    growing = [score for score in scores if score.is_growing]
    return facts.readers({score.product.node for score in growing})


def _weights_of(scores: Scores) -> tuple[bool, frozenset[str]]:
    """What products of all layers have in common."""
    return scores.in_softmax, frozenset(map(series, scores.paths))


def _compared(scores: Scores, candidates: Sequence[Scores], is_later: bool) -> ScoreFactors:
    """A product over that of the base model; ``is_later``: an earlier layer has one like it."""
    counterpart = _counterpart(candidates, is_later)
    base_size = scores.size
    factor = math.nan
    if counterpart is not None:
        base_size = counterpart.size
        factor = scores.factor / (counterpart.factor or math.nan)
    root = (scores.size / base_size) ** 0.5
    return ScoreFactors(scores, base_size, factor, Factor(constant=1 / root, width=root))


def _counterpart(candidates: Sequence[Scores], is_later: bool) -> Scores | None:
    """The first of the candidates, or the last for a later layer, if all have one size.

    The first layer may read embeddings without a norm, so those behind it are compared with the
    last.
    """
    if not candidates:
        return None
    sizes = {base_scores.size for base_scores in candidates}
    return candidates[-1] if is_later and len(sizes) == 1 else candidates[0]
