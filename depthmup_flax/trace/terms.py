"""Terms of arrays, and the factors that multiply them.

An array is, up to constants, a sum of *terms*: products with parameters, normalized arrays, arrays
after a nonlinearity, the stream. A term's factor is the product of the constants that multiply it;
there are several if it is added to itself with different ones. NaN is an unknown factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

Factors: TypeAlias = frozenset[float]
# Node of a term -> its factors.
Terms: TypeAlias = Mapping[int, Factors]
_Key = TypeVar("_Key")

_TOLERANCE = 1e-5  # relative: constants are stored in float32


def common(terms: Terms) -> float:
    """The factor of all terms, or 1 if they differ."""
    factors = distinct(factor for several in terms.values() for factor in several)
    return next(iter(factors)) if len(factors) == 1 else 1.0


def scaled(terms: Terms, factor: float) -> Terms:
    """``terms`` times a number."""
    if factor == 1:
        return terms
    return {i: times(factors, frozenset({factor})) for i, factors in terms.items()}


def times(a: Factors, b: Factors) -> Factors:
    """All products of two factors."""
    return distinct(x * y for x in a for y in b)


def distinct(factors: Iterable[float]) -> Factors:
    """Without those that differ by rounding; NaN alone if one is NaN."""
    result: list[float] = []
    for factor in sorted(factors):
        if math.isnan(factor):
            return frozenset({math.nan})
        if not result or not math.isclose(factor, result[-1], rel_tol=_TOLERANCE):
            result.append(factor)
    return frozenset(result)


def added(several: Sequence[Terms]) -> Terms:
    """The terms of a sum of arrays."""
    result = dict(several[0])
    for terms in several[1:]:
        for i, factors in terms.items():
            result[i] = distinct(result[i] | factors) if i in result else factors
    return result


def joined(pairs: Iterable[tuple[_Key, Factors]]) -> dict[_Key, Factors]:
    """Path or term -> all of its factors."""
    result: dict[_Key, Factors] = {}
    for key, factors in pairs:
        result[key] = result.get(key, frozenset()) | factors
    return result


def is_equal(a: float, b: float) -> bool:
    """Whether two factors are equal up to rounding, or the first is unknown."""
    return math.isnan(a) or math.isclose(a, b, rel_tol=_TOLERANCE)


def agreeing(terms: Terms, others: Terms) -> Terms:
    """``terms``; NaN for each whose factors ``others`` has not."""
    unknown = frozenset({math.nan})
    result: dict[int, Factors] = {}
    for i, factors in terms.items():
        theirs = others.get(i, frozenset())
        pairs = zip(sorted(factors), sorted(theirs), strict=False)
        are_equal = len(factors) == len(theirs) and all(is_equal(a, b) for a, b in pairs)
        result[i] = factors if are_equal else unknown
    return result
