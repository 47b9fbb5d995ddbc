"""Whether depth pays: the loss of deep and shallow networks of equal parameters, lengths and so costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from reproduction.public.curves import interval
from reproduction.public.sources import Run

EQUAL = 0.05  # relative difference of parameters
DEEPER = 1.5  # times
BINS = ((0.0, 16.0), (16.0, 32.0), (32.0, 64.0), (64.0, math.inf))  # width / depth of the shallower network


@dataclasses.dataclass(frozen=True)
class Gain:
    """The mean of loss(deeper) - loss(shallower)."""

    low: float  # of width / depth of the shallower one
    high: float
    pairs: int
    shapes: int
    mean: float
    bounds: tuple[float, float]  # 95 %, shapes resampled
    depth_ratio: float  # geometric mean


def pairs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """(shallower, deeper) of equal parameters and lengths."""
    found = []
    for shallow in runs:
        for deep in runs:
            equal = abs(deep.parameters / shallow.parameters - 1) <= EQUAL
            as_long = abs(deep.tokens / shallow.tokens - 1) <= 2 * EQUAL
            if equal and as_long and deep.series == shallow.series and deep.depth >= DEEPER * shallow.depth:
                found.append((shallow, deep))
    return found


def gain(found: Sequence[tuple[Run, Run]], low: float, high: float, draws: int = 2000) -> Gain | None:
    """Over pairs whose shallower network has such a width / depth; ``None`` if there are fewer than three."""
    chosen = [pair for pair in found if low <= pair[0].width / pair[0].depth < high]
    if len(chosen) < 3:
        return None
    differences = np.array([deep.loss - shallow.loss for shallow, deep in chosen])
    shapes = sorted({(run.width, run.depth) for pair in chosen for run in pair})
    index = {shape: i for i, shape in enumerate(shapes)}
    ends = np.array([[index[run.width, run.depth] for run in pair] for pair in chosen])
    random = np.random.default_rng(0)
    means = []
    for _ in range(draws):
        counts = np.bincount(random.integers(len(shapes), size=len(shapes)), minlength=len(shapes))
        weights = counts[ends].prod(1)
        if weights.sum():
            means.append(float(np.average(differences, weights=weights)))
    ratios = [math.log(deep.depth / shallow.depth) for shallow, deep in chosen]
    return Gain(
        low=low,
        high=high,
        pairs=len(chosen),
        shapes=len(shapes),
        mean=float(differences.mean()),
        bounds=interval(means),
        depth_ratio=math.exp(float(np.mean(ratios))),
    )
