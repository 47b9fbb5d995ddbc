"""What multiplies each branch of a model and each shortcut, relative to the base model.

A sum ``b y + a h`` that is multiplied by ``k`` before the next branch or a nonlinearity reads it
has a branch with ``b k`` and a shortcut with ``a k``: ``(h / c + y) * c`` is ``h + c * y``. If a
norm reads it, ``b / a`` alone counts.
"""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from depthmup_flax.auditing.depth_ratios import in_products
from depthmup_flax.auditing.relative_factors import all_close, by_series, close, ratio_of
from depthmup_flax.trace.branches import Branch
from depthmup_flax.trace.facts import Traced
from depthmup_flax.trace.reading import OfPaths
from depthmup_flax.util.groups import grouped, series


@dataclasses.dataclass(frozen=True)
class BranchFactor:
    """What multiplies one branch."""

    branch: Branch
    counterpart: Branch | None  # the branch of the base model that is most like it
    factor: float | None  # ``None`` is unknown
    shortcut: float  # of the stream beside it; 1 if that is right or unknown
    before_last_layer: bool  # the multiplier is in front of the last layer, which is linear
    mixed: bool  # its terms have different factors


@dataclasses.dataclass(frozen=True)
class BranchFactors:
    """What multiplies the branches of a model; ``fades``: each layer multiplies the stream, too."""

    of_node: Mapping[int, BranchFactor]  # by the node of the sum
    fades: bool


def branch_factors(
    facts: Traced,
    base: Traced,
    wanted: Mapping[int, float],
    *,
    absolute: bool,
    are_layers: bool = True,
) -> BranchFactors:
    """The factors of all branches.

    ``wanted`` is the rule's multiplier of the branch that ends in a sum: where a sum can be read in
    two ways, the right one counts. ``absolute``: the base model's factors are taken for 1.
    ``are_layers``: the branches follow one another in a stream, which they may multiply. Others,
    inside of branches, have counterparts in order: every layer has as many.
    """
    fading = _fading(facts, base) if are_layers else _Fading(False, 1.0)
    forms = grouped(base.branches, _form)
    counterparts: dict[int, Branch | None] = {}
    sums: dict[int, _Sum] = {}
    places: Counter[tuple[Hashable, ...]] = Counter()
    for branch in facts.branches:
        node = branch.node
        counterpart = None
        if forms:
            form = _most_similar(branch, forms)
            counterpart = forms[form][0 if are_layers else places[form] % len(forms[form])]
            places[form] += 1
        counterparts[node] = counterpart
        if counterpart is not None and absolute:
            counterpart = _with_factors_of_one(counterpart, branch)
        sums[node] = _read_sum(branch, counterpart, wanted[node], fading, facts)
    result: dict[int, BranchFactor] = {}
    for branch in facts.branches:
        node = branch.node
        result[node] = BranchFactor(
            branch,
            counterparts[node],
            _factor_of_branch(sums[node], wanted[node]),
            _factor_of_shortcut(sums[node], wanted[node]),
            sums[node].before_last_layer,
            sums[node].mixed,
        )
    return BranchFactors(_as_other_layers(result, sums, wanted), fading.in_both)


def branch_ends(branch: Branch, facts: Traced) -> list[str]:
    """The weights that a branch ends in.

    Else the scale or bias of the norm behind them, or all parameters of the branch.
    """
    last = [path for path in branch.factors if path]
    in_norms = in_products(branch.normalized, facts)
    return in_products(last, facts) or last[:1] or in_norms or sorted(branch.paths)


def projection_factor(entry: BranchFactor) -> float | None:
    """The factor of a projected shortcut; ``None``: it is unknown, or a part of it has factor 1."""
    if entry.counterpart is None or not entry.counterpart.projected:
        return None
    base = by_series(entry.counterpart.shortcut)
    ratios: list[float] = []
    for name, factors in by_series(entry.branch.shortcut).items():
        ratio = ratio_of(factors, base.get(name))
        if ratio is not None:
            ratios.append(ratio)
    if any(close(ratio, 1) for ratio in ratios):
        return None
    return ratios[0] if ratios else None


def normalized_factor(
    entry: BranchFactor,
    wanted: float,
    facts: Traced,
    *,
    absolute: bool,
) -> float | None:
    """The factor of what a norm at the branch's end normalizes, if there is one."""
    counterpart = entry.counterpart
    if counterpart is None or not entry.branch.normalized:
        return None
    if absolute:
        counterpart = _with_factors_of_one(counterpart, entry.branch)
    return _one_ratio(entry.branch.normalized, counterpart.normalized, wanted, facts)


@dataclasses.dataclass(frozen=True)
class _Fading:
    """How streams fade that every layer multiplies.

    The product over all layers must not depend on their number.
    """

    in_both: bool  # models
    layers: float  # the number of such layers over the base model's

    def growth(self, counterpart: Branch) -> float:
        """The power of one layer's factor by which the base model's must be corrected."""
        return 1 - 1 / self.layers if _fades(counterpart) else 0.0


def _fading(facts: Traced, base: Traced) -> _Fading:
    kinds = {branch.kind for branch in (*facts.branches, *base.branches) if _fades(branch)}
    number = sum(branch.times for branch in facts.branches if branch.kind in kinds)
    base_number = sum(branch.times for branch in base.branches if branch.kind in kinds)
    if facts.unread_sums.number > base.unread_sums.number:
        base_number = 0  # of what a velocity keeps, little is known
    layers = number / base_number if number and base_number else 1.0
    return _Fading(base_number > 0, layers)


def _fades(branch: Branch) -> bool:
    """Whether the stream is multiplied by a number other than 1 up to the next branch."""
    return any(not close(branch.kept * factor, 1) for factor in branch.carried)


def _form(branch: Branch) -> tuple[Hashable, ...]:
    """What alike branches have in common, the most telling first."""
    factors = frozenset(by_series(branch.factors))
    shortcut = frozenset(by_series(branch.shortcut))
    return branch.kind, branch.projected, factors, shortcut


def _most_similar(
    branch: Branch,
    forms: Mapping[tuple[Hashable, ...], Sequence[Branch]],
) -> tuple[Hashable, ...]:
    """The form of the base model's branches that are most like a branch."""
    wanted = _form(branch)

    def fit(form: tuple[Hashable, ...]) -> tuple[bool, ...]:
        return tuple(map(operator.eq, form, wanted))

    return max(forms, key=fit)


_ONE = frozenset({1.0})


def _with_factors_of_one(counterpart: Branch, branch: Branch) -> Branch:
    """The base model's branch as if it had factors of 1, and the terms of the model's."""
    return dataclasses.replace(
        counterpart,
        factors=dict.fromkeys(branch.factors, _ONE),
        total=dict.fromkeys(branch.total, _ONE),
        normalized=dict.fromkeys(branch.normalized, _ONE),
        kept=1.0,
        carried=_ONE,
        bent=branch.bent,
    )


@dataclasses.dataclass(frozen=True)
class _Sum:
    """The factors of one sum ``b y + a h``, which is multiplied by ``k``."""

    branch: float | None = None  # ``b``
    relative: float | None = None  # ``b / a``
    shortcut: float = 1.0  # ``a``
    onward: float | None = None  # ``k``; ``None``: a norm or the readout comes first
    before_last_layer: bool = False
    mixed: bool = False


def _read_sum(
    branch: Branch,
    counterpart: Branch | None,
    wanted: float,
    fading: _Fading,
    facts: Traced,
) -> _Sum:
    if counterpart is None:
        return _Sum()
    shortcut = ratio_of(frozenset({branch.kept}), frozenset({counterpart.kept}))
    if shortcut is None:
        return _Sum()
    growth = fading.growth(counterpart)
    shortcut *= counterpart.kept**growth
    right = wanted * shortcut
    factor = _one_ratio(branch.factors, counterpart.factors, right, facts)
    before_last_layer = False
    if not close(factor, right):  # the last layer is linear, so its input may be multiplied
        total = _one_ratio(branch.total, counterpart.total, right, facts)
        before_last_layer = close(total, right)
        if before_last_layer:
            factor = total
    onward = ratio_of(branch.carried, counterpart.carried)
    if onward is None:
        # Behind a nonlinearity, whose own numbers are no factors, nothing is known to fade.
        onward = ratio_of(branch.bent, counterpart.bent)
    elif growth:
        onward *= min(counterpart.carried) ** growth
    return _Sum(
        branch=factor,
        relative=None if factor is None else factor / shortcut,
        shortcut=shortcut,
        onward=onward,
        before_last_layer=before_last_layer,
        mixed=_is_mixed(branch.factors, counterpart.factors),
    )


def _factor_of_branch(sum_factors: _Sum, wanted: float) -> float | None:
    if sum_factors.branch is None or close(sum_factors.relative, wanted):
        return sum_factors.relative
    if sum_factors.onward is not None:
        return sum_factors.branch * sum_factors.onward
    if close(sum_factors.branch, wanted):  # the shortcut's fault
        return wanted
    return sum_factors.relative


def _factor_of_shortcut(sum_factors: _Sum, wanted: float) -> float:
    if sum_factors.onward is not None:
        return sum_factors.shortcut * sum_factors.onward
    is_wrong = not close(sum_factors.relative, wanted) and close(sum_factors.branch, wanted)
    return sum_factors.shortcut if is_wrong else 1.0


def _as_other_layers(
    factors: Mapping[int, BranchFactor], sums: Mapping[int, _Sum], wanted: Mapping[int, float]
) -> dict[int, BranchFactor]:
    """The factors, where sums that norms read are taken for those of other layers.

    What is right behind the sum may be wrong in front of a norm: equal sums of other layers tell.
    """
    wrong_shortcuts: list[tuple[float | None, float]] = []
    for node, entry in factors.items():
        if not close(entry.shortcut, 1):
            wrong_shortcuts.append((sums[node].relative, entry.shortcut))
    result = dict(factors)
    for node, entry in factors.items():
        if sums[node].onward is not None or not close(entry.shortcut, 1):
            continue
        alike = [factor for ratio, factor in wrong_shortcuts if close(sums[node].relative, ratio)]
        if alike:
            result[node] = dataclasses.replace(entry, factor=wanted[node], shortcut=alike[0])
    return result


def _one_ratio(factors: OfPaths, base: OfPaths, wanted: float, facts: Traced) -> float | None:
    """The one ratio of a branch's terms: of its products, or of what a nonlinearity returns.

    If they differ, it is the first that is not ``wanted``; if one is unknown, ``None``.
    """
    ratios = _ratios_of_terms(factors, base)
    products = set(map(series, in_products(factors, facts)))
    of_products = [ratio for name, ratio in ratios.items() if name in products]
    terms = of_products or list(ratios.values())
    known = [ratio for ratio in terms if ratio is not None]
    if not known or len(known) < len(terms):
        return None
    wrong = [ratio for ratio in known if not close(ratio, wanted)]
    return wrong[0] if wrong else wanted


def _is_mixed(factors: OfPaths, base: OfPaths) -> bool:
    """Whether the terms of a branch have different ratios, as far as these are known."""
    known = [ratio for ratio in _ratios_of_terms(factors, base).values() if ratio is not None]
    return bool(known) and not all_close(known)


def _ratios_of_terms(factors: OfPaths, base: OfPaths) -> dict[str, float | None]:
    base_factors = by_series(base)
    result: dict[str, float | None] = {}
    for name, values in by_series(factors).items():
        result[name] = ratio_of(values, base_factors.get(name))
    return result
