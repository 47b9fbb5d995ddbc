"""The factors of a model over those of its base model: of branches and shortcuts, and around products.

A sum ``b y + a h`` that is multiplied by ``k`` before the next branch or a nonlinearity reads it has a branch with
``b k`` and a shortcut with ``a k``: ``(h / c + y) * c`` is ``h + c * y``. If a norm reads it, ``b / a`` alone counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import product

from depthmup_flax.auditing.facts import Branch, OfPaths, Traced, joined
from depthmup_flax.auditing.parameter_trees import series
from depthmup_flax.auditing.uses import PRODUCT

_TOLERANCE = 5e-3  # relative; constants may be stored in bfloat16


def close(a: float | None, b: float | None) -> bool:
    """Whether two factors agree, if both are known."""
    return a is not None and b is not None and math.isclose(a, b, rel_tol=_TOLERANCE)


def ratio_of(found: frozenset[float] | None, base: frozenset[float] | None) -> float | None:
    """The ratio of the factors of a term in two models, if it is one number."""
    if not found or not base or any(math.isnan(x) or x == 0 for x in (*found, *base)):
        return None
    pairs = zip(sorted(found), sorted(base), strict=False) if len(found) == len(base) else product(found, base)
    ratios = [a / b for a, b in pairs]
    return ratios[0] if all(close(ratios[0], other) for other in ratios) else None


def by_series(factors: OfPaths) -> OfPaths:
    """Factors by paths without numbers."""
    return joined((series(path), values) for path, values in factors.items())


@dataclasses.dataclass(frozen=True)
class _Sum:
    """The factors of one sum."""

    branch: float | None  # ``b``
    relative: float | None  # ``b / a``
    shortcut: float  # ``a``
    onward: float | None  # ``k``; ``None``: a norm or the readout comes first


class BranchFactors:
    """What multiplies each branch of a model, and each shortcut.

    ``wanted`` is the rule's multiplier of the branch that ends in a sum. ``absolute``: the base model's factors are
    taken for 1, as both models have the same.

    Attributes:
      found: node of a sum -> the factor of its branch; ``None`` is unknown.
      shortcut: node of a sum -> the factor of its shortcut; 1 if that is right or unknown.
      multiplied_before: nodes of sums whose branch is multiplied before its last layer.
    """

    def __init__(self, facts: Traced, base: Traced, wanted: Callable[[int], float], *, absolute: bool):
        self.facts, self.base, self._wanted, self._absolute = facts, base, wanted, absolute
        self.multiplied_before: set[int] = set()
        sums = {branch.node: self._read(branch) for branch in facts.branches}
        self.found = {node: self._found(node, one) for node, one in sums.items()}
        self.shortcut = {node: self._of_shortcut(node, one) for node, one in sums.items()}
        # What is right behind the sum may be wrong in front of a norm: equal sums of other layers tell.
        alike = [(sums[node].relative, factor) for node, factor in self.shortcut.items() if not close(factor, 1)]
        for node, one in sums.items():
            factor = next((f for relative, f in alike if close(one.relative, relative)), None)
            if one.onward is None and factor is not None and close(self.shortcut[node], 1):
                self.found[node], self.shortcut[node] = wanted(node), factor

    def products(self, paths: Iterable[str]) -> list[str]:
        """Those of the parameters that are used in products."""
        return [path for path in paths if any(u.kind == PRODUCT for u in self.facts.uses.get(path, ()))]

    def like(self, branch: Branch) -> Branch | None:
        """The first of the base model's branches that is most like a branch."""
        terms = lambda b: [by_series(factors).keys() for factors in (b.factors, b.shortcut)]
        mine = terms(branch)

        def fit(b: Branch) -> tuple[bool, ...]:
            same_terms = (one == other for one, other in zip(mine, terms(b), strict=True))
            return b.kind == branch.kind, b.projected == branch.projected, *same_terms

        return max(self.base.branches, key=fit, default=None)

    def one(self, factors: OfPaths, base: OfPaths, wanted: float) -> float | None:
        """The one ratio of a branch's terms: of its products, or of what a nonlinearity returns.

        If they differ, it is the first that is not ``wanted``; if one is unknown, ``None``.
        """
        theirs = by_series(base)
        ratios = {
            name: ratio_of(values, frozenset({1.0}) if self._absolute else theirs.get(name))
            for name, values in by_series(factors).items()
        }
        products = set(map(series, self.products(factors)))
        chosen = [ratios[name] for name in ratios if name in products] or list(ratios.values())
        known = [ratio for ratio in chosen if ratio is not None]
        if not known or len(known) < len(chosen):
            return None
        return next((ratio for ratio in known if not close(ratio, wanted)), wanted)

    def inside(self, branch: Branch) -> float | None:
        """The factor of what a norm at the branch's end normalizes, if there is one."""
        other = self.like(branch)
        if other is None or not branch.normalized:
            return None
        return self.one(branch.normalized, other.normalized, self._wanted(branch.node))

    def _read(self, branch: Branch) -> _Sum:
        other, wanted = self.like(branch), self._wanted(branch.node)
        if other is None:
            return _Sum(None, None, 1.0, None)
        kept = ratio_of(frozenset({branch.kept}), frozenset({1.0 if self._absolute else other.kept}))
        if kept is None:
            return _Sum(None, None, 1.0, None)
        after = self.one(branch.factors, other.factors, wanted * kept)
        if not close(after, wanted * kept):  # the branch's last layer is linear, so its input may be multiplied
            total = self.one(branch.total, other.total, wanted * kept)
            if close(total, wanted * kept):
                self.multiplied_before.add(branch.node)
                after = total
        onward = ratio_of(branch.carried, frozenset({1.0}) if self._absolute else other.carried)
        return _Sum(after, None if after is None else after / kept, kept, onward)

    def _found(self, node: int, one: _Sum) -> float | None:
        wanted = self._wanted(node)
        if one.branch is None or close(one.relative, wanted):
            return one.relative
        if one.onward is not None:
            return one.branch * one.onward
        return wanted if close(one.branch, wanted) else one.relative  # the shortcut's fault

    def _of_shortcut(self, node: int, one: _Sum) -> float:
        wanted = self._wanted(node)
        if one.onward is not None:
            return one.shortcut * one.onward
        is_wrong = not close(one.relative, wanted) and close(one.branch, wanted)
        return one.shortcut if is_wrong else 1.0


class ProductFactors:
    """The factors of a model over those of its base model; ``pairs`` are the base model's paths.

    ``few`` are weights from the width to a fixed number of features. What a readout reads has the readout's factor,
    unless it is such features.

    Attributes:
      paths: the parameters with factors behind them.
    """

    def __init__(self, facts: Traced, base: Traced, pairs: Mapping[str, str], few: Collection[str]):
        self._pairs, self._facts, self._base = pairs, facts, base
        in_front = {path: facts.before_readouts[path] for path in few if path in facts.before_readouts}
        self._behind = {**in_front, **facts.factors}
        self._base_behind = {**base.before_readouts, **base.factors}
        self.paths = self._behind.keys()

    def behind(self, path: str) -> float | None:
        """The ratio of the factors of a parameter up to what reads it."""
        return self._ratio(path, self._behind, self._base_behind)

    def in_front(self, path: str) -> float:
        """The ratio of the factors of the norm or the stream that a product reads; 1 if it is of products, or unknown.

        Products have factors of their own.
        """
        ratio = self._ratio(path, self._facts.inputs, self._base.inputs)
        return 1.0 if ratio is None else ratio

    def around(self, path: str) -> float | None:
        """The ratio in front of a product times that behind it."""
        behind = self.behind(path)
        return None if behind is None else behind * self.in_front(path)

    def _ratio(self, path: str, factors: OfPaths, base: OfPaths) -> float | None:
        return ratio_of(factors.get(path), base.get(self._pairs[path]) or by_series(base).get(series(path)))
