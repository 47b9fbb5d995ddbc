"""Depth ratios of a model to its base model, and the factors of one over those of the other.

A sum ``b y + a h`` that is multiplied by ``k`` before the next branch or a nonlinearity reads it has a branch with
``b k`` and a shortcut with ``a k``: ``(h / c + y) * c`` is ``h + c * y``. If a norm reads it, ``b / a`` alone counts.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import product
from typing import TypeAlias

from depthmup_flax.trace.branches import Branch
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.reading import OfPaths
from depthmup_flax.trace.terms import joined
from depthmup_flax.trace.uses import PRODUCT
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.groups import grouped, series

Kind: TypeAlias = frozenset[str]


@dataclasses.dataclass(frozen=True)
class DepthRatios:
    """The ratio of all streams together, and that of each branch that counts, by the node of its sum.

    ``uses`` is how often its weights are used over the base model's, ``repeated`` the same of parameters in branches.
    """

    together: float
    of_branch: Mapping[int, float]
    uses: Mapping[int, float] = dataclasses.field(default_factory=dict)
    repeated: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def of_path(self, path: str, facts: Traced, which: str = "of_branch") -> float:
        """The ratio, or the ``uses``, of the branches that a parameter is inside."""
        nodes = facts.branches_of.get(path, ()) if facts.inside.get(path) else ()
        return max((getattr(self, which)[n] for n in nodes if n in getattr(self, which)), default=1.0)


def depth_ratios(facts: Traced, base: Traced, given: float | None) -> DepthRatios:
    """The depth ratios of two models, or the ``given`` one.

    Streams that grow differently, such as those of an encoder and a decoder, have ratios of their own. Branches whose
    number is fixed count if they stand between others: a block that halves the resolution does, an attention pooling
    head does not.
    """
    by_kind = (grouped(f.branches, lambda b: b.kind) for f in (facts, base))
    mine, theirs = ({kind: sum(b.times for b in alike) for kind, alike in one.items()} for one in by_kind)
    counted = [_counted(stream, mine, theirs) for stream in _streams(facts.branches)]
    if not any(counted):  # equally deep
        counted = _streams(facts.branches)
    every = [b for several in counted for b in several]
    if given is not None:
        if not 0 < given < math.inf:
            raise InputError(f"depth_ratio is {given!r}: use depth / base_depth, a number above 0.")
        return DepthRatios(float(given), {b.node: float(given) for b in every})
    together = _ratio(every, base.branches)
    ratios: dict[int, float] = {}
    for several in counted:
        ratio = _ratio(several, base.branches)
        ratios |= {b.node: ratio if 0 < ratio < math.inf else together for b in several}
    if not 0 < together < math.inf:
        raise InputError(
            f"the trace finds {facts.depth:g} residual sums in the model and {base.depth:g} in the base model: pass "
            "depth_ratio=depth / base_depth."
        )
    return DepthRatios(together, ratios)


def _ratio(several: Sequence[Branch], base: Sequence[Branch]) -> float:
    """The number of layers over the base model's, or that of branches where these differ in more than one layer.

    The first or the last layer may lack a branch, such as the update of edges that no later layer reads.
    """
    kinds = {b.kind for b in several}
    mine, theirs = _counts(several), _counts([b for b in base if b.kind in kinds])
    more = {number - theirs.get(key, 0) for key, number in mine.items()}
    if len(more) == 1 and more != {0} and mine.keys() == theirs.keys() and max(mine.values()) - min(mine.values()) <= 1:
        return max(mine.values()) / max(theirs.values())
    number, base_number = sum(mine.values()), sum(theirs.values())
    return number / base_number if base_number else math.inf if number else 1.0


def _counts(branches: Sequence[Branch]) -> dict[tuple[Kind, int], float]:
    """The number of branches by kind, apart for each of the streams that have it."""
    result: dict[tuple[Kind, int], float] = {}
    for kind, alike in grouped(branches, lambda b: b.kind).items():
        for n, of_stream in enumerate(grouped(alike, lambda b: b.stream).values()):
            result[kind, n] = sum(b.times for b in of_stream)
    return result


def _streams(branches: Sequence[Branch]) -> list[list[Branch]]:
    """The branches of each stream; streams with branches of one kind, or whose layers take turns, are one."""
    groups: list[list[Branch]] = []
    for stream in grouped(branches, lambda b: b.stream).values():
        kinds, first = {b.kind for b in stream}, stream[0].node
        near = [g for g in groups if first < g[-1].node or not kinds.isdisjoint(b.kind for b in g)]
        together = sorted((b for g in (stream, *near) for b in g), key=lambda b: b.node)
        groups = [*(g for g in groups if g not in near), together]
    return groups


def _counted(stream: Sequence[Branch], mine: Mapping[Kind, float], base: Mapping[Kind, float]) -> list[Branch]:
    """The branches of a stream that count for its depth; none if their numbers are fixed."""
    growing = [k for k, b in enumerate(stream) if mine[b.kind] != base.get(b.kind)]
    kinds = {b.kind for b in stream[growing[0] : growing[-1] + 1]} if growing else set()
    return [b for b in stream if b.kind in kinds]


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


def _form(branch: Branch) -> tuple[Hashable, ...]:
    """What alike branches have in common, the most telling first."""
    of_terms = (frozenset(by_series(factors)) for factors in (branch.factors, branch.shortcut))
    return branch.kind, branch.projected, *of_terms


@dataclasses.dataclass(frozen=True)
class _Sum:
    """The factors of one sum."""

    branch: float | None  # ``b``
    relative: float | None  # ``b / a``
    shortcut: float  # ``a``
    onward: float | None  # ``k``; ``None``: a norm or the readout comes first


def _fades(branch: Branch) -> bool:
    """Whether the stream is multiplied by a number other than 1 up to the next branch."""
    return any(not close(branch.kept * factor, 1) for factor in branch.carried)


class BranchFactors:
    """What multiplies each branch of a model, and each shortcut.

    ``wanted`` is the rule's multiplier of the branch that ends in a sum. ``absolute``: the base model's factors are
    taken for 1, as both models have the same.

    Attributes:
      found: node of a sum -> the factor of its branch; ``None`` is unknown.
      shortcut: node of a sum -> the factor of its shortcut; 1 if that is right or unknown.
      multiplied_before: nodes of sums whose branch is multiplied before its last layer.
      mixed: nodes of sums whose branch has terms with different factors.
    """

    def __init__(self, facts: Traced, base: Traced, wanted: Callable[[int], float], *, absolute: bool):
        self.facts, self.base, self._wanted, self._absolute = facts, base, wanted, absolute
        self._forms = grouped(base.branches, _form)
        self.multiplied_before: set[int] = set()
        self.mixed: set[int] = set()
        # If every layer multiplies the stream, the product over all layers must not depend on their number.
        fading = {b.kind for f in (facts, base) for b in f.branches if _fades(b)}
        number, base_number = (sum(b.times for b in f.branches if b.kind in fading) for f in (facts, base))
        base_number *= facts.unread_sums.number <= base.unread_sums.number  # of what a velocity keeps, little is known
        self.fades, self._layers = base_number > 0, number / base_number if number and base_number else 1.0
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

    def ends(self, branch: Branch) -> list[str]:
        """The weights that a branch ends in, or the scale or bias of the norm behind them; else all parameters."""
        behind = [path for path in branch.factors if path]
        return self.products(behind) or behind[:1] or self.products(branch.normalized) or sorted(branch.paths)

    def like(self, branch: Branch) -> Branch | None:
        """The first of the base model's branches that is most like a branch."""
        fit = lambda form: tuple(map(operator.eq, form, _form(branch)))
        return self._forms[max(self._forms, key=fit)][0] if self._forms else None

    def projection(self, branch: Branch) -> float | None:
        """The factor of a projected shortcut."""
        other = self.like(branch)
        if other is None or not other.projected:
            return None
        mine, theirs = by_series(branch.shortcut), by_series(other.shortcut)
        ratios = [ratio_of(values, theirs.get(name)) for name, values in mine.items()]
        known = [ratio for ratio in ratios if ratio is not None]
        return known[0] if known and not any(close(ratio, 1) for ratio in known) else None

    def one(self, factors: OfPaths, base: OfPaths, wanted: float) -> float | None:
        """The one ratio of a branch's terms: of its products, or of what a nonlinearity returns.

        If they differ, it is the first that is not ``wanted``; if one is unknown, ``None``.
        """
        ratios = self._of_terms(factors, base)
        products = set(map(series, self.products(factors)))
        chosen = [ratios[name] for name in ratios if name in products] or list(ratios.values())
        known = [ratio for ratio in chosen if ratio is not None]
        if not known or len(known) < len(chosen):
            return None
        return next((ratio for ratio in known if not close(ratio, wanted)), wanted)

    def _of_terms(self, factors: OfPaths, base: OfPaths) -> dict[str, float | None]:
        theirs = by_series(base)
        return {
            name: ratio_of(values, frozenset({1.0}) if self._absolute else theirs.get(name))
            for name, values in by_series(factors).items()
        }

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
        growth = 1 - 1 / self._layers if _fades(other) and not self._absolute else 0.0
        kept *= other.kept**growth
        after = self.one(branch.factors, other.factors, wanted * kept)
        known = [ratio for ratio in self._of_terms(branch.factors, other.factors).values() if ratio is not None]
        if any(not close(ratio, known[0]) for ratio in known):
            self.mixed.add(branch.node)
        if not close(after, wanted * kept):  # the branch's last layer is linear, so its input may be multiplied
            total = self.one(branch.total, other.total, wanted * kept)
            if close(total, wanted * kept):
                self.multiplied_before.add(branch.node)
                after = total
        onward = ratio_of(branch.carried, frozenset({1.0}) if self._absolute else other.carried)
        onward = onward if onward is None or not growth else onward * min(other.carried) ** growth
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
    unless it is such features. What those ``apart`` read has a factor that is judged by itself.

    Attributes:
      paths: the parameters with factors behind them.
    """

    def __init__(
        self, facts: Traced, base: Traced, pairs: Mapping[str, str], few: Collection[str], apart: Collection[str]
    ):
        self._pairs, self._facts, self._base, self._apart = pairs, facts, base, apart
        with_readouts = facts.own(())
        of_few = {path: with_readouts[path] for path in few if path in with_readouts}
        self._behind, self._base_behind = of_few | facts.own(facts.readouts), base.own(()) | base.own(base.readouts)
        self.paths = self._behind.keys() | facts.inputs.keys()

    def behind(self, path: str) -> float | None:
        """The ratio of the factors of a parameter up to what reads it; 1 up to a readout, which has them."""
        return self._ratio(path, self._behind, self._base_behind) if path in self._behind else 1.0

    def in_front(self, path: str) -> float | None:
        """The ratio of the factors of what a product reads; 1 if that is products, which have factors of their own."""
        is_read = path in self._facts.inputs and path not in self._apart
        return self._ratio(path, self._facts.inputs, self._base.inputs) if is_read else 1.0

    def around(self, path: str) -> float | None:
        """The ratio in front of a product times that behind it."""
        behind, in_front = self.behind(path), self.in_front(path)
        return None if behind is None or in_front is None else behind * in_front

    def _ratio(self, path: str, factors: OfPaths, base: OfPaths) -> float | None:
        ratio = ratio_of(factors.get(path), base.get(self._pairs[path]))
        if ratio is None:  # the first layer may read something else than the others
            ratio = ratio_of(factors.get(path), by_series(base).get(series(path)))
        return ratio
