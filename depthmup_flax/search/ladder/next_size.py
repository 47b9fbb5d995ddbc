"""Sizes between searched ones and a target: what a search there would cost and tell."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from depthmup_flax.search.ladder.law import Law, Prediction, Search, Size
from depthmup_flax.search.ladder.regret import Curve, Regret, expected_regret

_RATES = 3  # around the predicted one, at one more size
_RATES_IF_WIDE = 5
_APART = 1.0  # octaves between them
_SHARES = (0.25, 0.5, 0.75)  # of the way to the target, in octaves


@dataclasses.dataclass(frozen=True, eq=False)
class Searched:
    """The runs at one size, and the best rate among them."""

    search: Search
    curve: Curve
    parameters: int
    lowest: float  # mean loss


@dataclasses.dataclass(frozen=True)
class Next:
    """One more size, and what it would tell."""

    size: Size
    rates: tuple[float, ...]  # to try there, around the predicted one
    runs: int
    cost: float  # of these runs, in runs of the target
    regret: Regret  # expected after them


def work(size: Size) -> float:
    """Parameters times examples, up to a factor."""
    return size.parameters * (size.steps or 1) * (size.batch_size or 1)


def next_sizes(
    law: Law, searched: Sequence[Searched], target: Size, now: Prediction, shape: Curve, unit: float
) -> list[Next]:
    """Sizes between the largest one and the target that cost less than its run, with what a search there would tell."""
    large, searches = searched[-1], [one.search for one in searched]
    runs = _RATES if now.interval[1] - now.mean < 2 * _APART else _RATES_IF_WIDE  # of one seed
    error = large.search.error * math.sqrt(len(large.curve.losses))
    result = list[Next]()
    at, sizes = large.search.size, {(one.size.width, one.size.depth) for one in searches}
    for shares in itertools.product((0.0, *_SHARES, 1.0), repeat=2):
        width, depth = (
            _between(getattr(at, name), getattr(target, name), share)
            for name, share in zip(("width", "depth"), shares, strict=True)
        )
        size = dataclasses.replace(at, width=width, depth=depth)
        if (width, depth) in sizes or (width, depth) == (target.width, target.depth):
            continue
        sizes.add((width, depth))
        there = law.predict(searches, size)
        after = law.predict([*searches, Search(size, there.mean, error)], target)
        rates = tuple(2.0 ** (there.mean + apart * _APART) for apart in range(-(runs // 2), runs // 2 + 1))
        if (cost := runs * work(size) / work(target)) < 1:
            result.append(Next(size, rates, runs, cost, expected_regret(shape, after, unit)))
    ordered, kept = sorted(result, key=lambda one: (one.cost, one.regret.mean)), list[Next]()
    for one in ordered:  # a dearer size must tell more
        if not kept or one.regret.mean < 0.98 * kept[-1].regret.mean:
            kept.append(one)
    return kept


def _between(low: int, high: int, share: float) -> int:
    """A size on the way, of at most two binary digits where it is large."""
    exact = low * (high / low) ** share
    if share in (0.0, 1.0):
        return low if share == 0.0 else high
    step = max(1, 2 ** (int(math.log2(max(exact, 1.0))) - 1))
    return max(1, step * round(exact / step))
