"""The loss of one cell of a sweep over its learning rates: where it is lowest, and what another rate costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from reproduction.public.sources import Run

_OCTAVE = 1.01  # in base-2 logarithms of the rate: where a curve is a parabola; three points where rates double


@dataclasses.dataclass(frozen=True)
class Curve:
    """Losses over base-2 logarithms of rates, ascending; losses of equal rates are averaged."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    width: int
    depth: int
    tokens: float
    batch: float
    series: str

    @property
    def lowest(self) -> int:
        """The index of the lowest loss."""
        return int(np.argmin(self.y))

    @property
    def inner(self) -> bool:
        """Whether the lowest loss has a neighbor on both sides."""
        return 0 < self.lowest < len(self.x) - 1

    @property
    def best(self) -> float:
        """The base-2 logarithm of the best rate: of the parabola where `inner`, else of the lowest loss."""
        return self._minimum()[0]

    @property
    def least(self) -> float:
        """The loss at `best`."""
        return self._minimum()[1]

    def _minimum(self) -> tuple[float, float]:
        i = self.lowest
        if not self.inner:
            return self.x[i], self.y[i]
        a, b, c = self._parabola(i)
        if a <= 0:
            return self.x[i], self.y[i]
        at = float(np.clip(-b / (2 * a), self.x[i - 1], self.x[i + 1]))
        return at, float(np.polyval((a, b, c), at))

    def _parabola(self, i: int) -> np.ndarray:
        """Least squares through the points within an octave of point ``i``, at least it and its two neighbors."""
        near = [j for j, x in enumerate(self.x) if abs(x - self.x[i]) < _OCTAVE or abs(j - i) <= 1]
        return np.polyfit([self.x[j] for j in near], [self.y[j] for j in near], 2)

    def within(self, at: float) -> bool:
        """Whether the grid reaches this rate."""
        return self.x[0] <= at <= self.x[-1]

    def loss(self, at: float) -> float:
        """The loss at a rate, by the parabola around the nearest point; beyond the grid, that of its end."""
        at = float(np.clip(at, self.x[0], self.x[-1]))
        if len(self.x) < 3:
            return float(np.interp(at, self.x, self.y))
        i = int(np.clip(np.argmin(np.abs(np.array(self.x) - at)), 1, len(self.x) - 2))
        return float(np.polyval(self._parabola(i), at))

    def regret(self, at: float) -> float:
        """What the rate costs against the best one; not below 0."""
        return max(0.0, self.loss(at) - self.least)


def curve_of(runs: Sequence[Run]) -> Curve:
    """The curve of runs that differ in their rates alone."""
    rates = sorted({run.rate for run in runs})
    losses = [float(np.mean([run.loss for run in runs if run.rate == rate])) for rate in rates]
    first = runs[0]
    return Curve(
        x=tuple(math.log2(rate) for rate in rates),
        y=tuple(losses),
        width=first.width,
        depth=first.depth,
        tokens=first.tokens,
        batch=first.batch,
        series=first.series,
    )


def interval(values: Iterable[float]) -> tuple[float, float]:
    """The 2.5th and 97.5th percentile."""
    low, high = np.percentile(list(values), [2.5, 97.5])
    return float(low), float(high)


def resampled(groups: Sequence[Sequence[float]], draws: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean over all values, groups (not values) resampled."""
    random = np.random.default_rng(seed)
    means = []
    for _ in range(draws):
        chosen = random.integers(len(groups), size=len(groups))
        means.append(float(np.mean(np.concatenate([groups[i] for i in chosen]))))
    return interval(means)
