"""The factors of a model over those of its base model, and whether two factors agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from depthmup_flax.trace.reading import OfPaths
from depthmup_flax.trace.terms import joined
from depthmup_flax.util.groups import series

_TOLERANCE = 5e-3  # relative; constants may be stored in bfloat16


def close(a: float | None, b: float | None) -> bool:
    """Whether two factors agree, if both are known."""
    if a is None or b is None:
        return False
    return math.isclose(a, b, rel_tol=_TOLERANCE)


def ratio_of(factors: frozenset[float] | None, base: frozenset[float] | None) -> float | None:
    """The ratio of the factors of a term in two models, if it is one number.

    A term may reach its reader on several ways, with a factor each. As many ways in both models
    are compared in order; otherwise each with each.
    """
    if not factors or not base or _is_unclear(factors) or _is_unclear(base):
        return None
    pairs: Iterable[tuple[float, float]] = itertools.product(factors, base)
    if len(factors) == len(base):
        pairs = zip(sorted(factors), sorted(base), strict=True)
    ratios = [a / b for a, b in pairs]
    return ratios[0] if all_close(ratios) else None


def all_close(ratios: Iterable[float]) -> bool:
    """Whether all of these factors agree with the first."""
    first, *others = ratios
    return all(close(first, ratio) for ratio in others)


def by_series(factors: OfPaths) -> OfPaths:
    """Factors by paths without numbers, so that those of all layers are together."""
    return joined((series(path), values) for path, values in factors.items())


def _is_unclear(factors: Iterable[float]) -> bool:
    return any(math.isnan(factor) or factor == 0 for factor in factors)
