"""The law of the distance: how far the best rate of a larger network lies from those of smaller ones.

In base-2 logarithms, the best rate at size x is ``y(x) = y0 + sum over axes of slope_a (x_a - x0_a) + noise``. Axes are
width, depth, examples and batch size. A rule says that the slopes of width and depth are 0. They vary between networks:
slope_a has the mean ``slopes[a]`` and the standard deviation ``spreads[a]``, measured on committed sweeps
(`constants.json`, reproduction/ladder). The noise has the standard deviation ``noise``, and each search its own
standard error over seeds. ``y0`` is free. The scale of all of it differs between networks, so the joint distribution is
Student's t with ``freedom`` degrees of freedom.

Letters in shapes: N searches.

References:
  The slopes are the trends of arXiv:2310.02244, section 10.3. Conditional t distributions: Ding, On the Conditional
  Distribution of the Multivariate t Distribution, The American Statistician 70 (2016).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.special

AXES = ("width", "depth", "examples", "batch_size")
FILE = pathlib.Path(__file__).with_name("constants.json")


@dataclasses.dataclass(frozen=True)
class Size:
    """What a rate carries over to. Steps and batch size of 0 are unknown, and equal for all."""

    width: int
    depth: int
    steps: int = 0
    batch_size: int = 0

    @property
    def place(self) -> np.ndarray:
        """Base-2 logarithms along `AXES`, (4,)."""
        batch_size, steps = self.batch_size or 1, self.steps or 1
        return np.log2(np.array([self.width, self.depth, steps * batch_size, batch_size], np.float64))

    @property
    def parameters(self) -> int:
        """Proportional to them: width^2 depth."""
        return self.width**2 * self.depth

    def __str__(self) -> str:
        return f"{self.width} x {self.depth}"


@dataclasses.dataclass(frozen=True)
class Search:
    """The best rate at one size."""

    size: Size
    rate: float  # log2
    error: float = 0.0  # its standard error in octaves, over seeds


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The best rate at a target: Student's t."""

    mean: float  # log2
    scale: float  # octaves
    freedom: float

    @property
    def deviation(self) -> float:
        """Its standard deviation in octaves."""
        return self.scale * math.sqrt(self.freedom / (self.freedom - 2))

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, in log2."""
        half = self.scale * float(scipy.special.stdtrit(self.freedom, 0.975))
        return self.mean - half, self.mean + half

    def quantiles(self, count: int) -> np.ndarray:
        """Equally likely values, (count,), minus the mean."""
        return self.scale * scipy.special.stdtrit(self.freedom, (np.arange(count) + 0.5) / count)


@dataclasses.dataclass(frozen=True)
class Law:
    """The constants of a rule; see the module."""

    slopes: Mapping[str, float]
    spreads: Mapping[str, float]
    noise: float
    freedom: float
    one_seed: float = 0.0  # the standard error of a search with one seed, median of the sweeps

    def likelihood(self, searches: Sequence[Search]) -> float:
        """The logarithm of the density of the searches' differences from the first one."""
        covariance, apart = self._differences(searches)
        count = len(apart)
        distance = apart @ np.linalg.solve(covariance, apart)
        log_volume = np.linalg.slogdet(covariance)[1] + count * math.log(self.freedom * math.pi)
        gamma = scipy.special.gammaln
        shape = gamma((self.freedom + count) / 2) - gamma(self.freedom / 2)
        return float(shape - log_volume / 2 - (self.freedom + count) / 2 * math.log1p(distance / self.freedom))

    def predict(self, searches: Sequence[Search], target: Size, error: float = 0.0) -> Prediction:
        """The best rate at ``target`` as a search with this standard error will measure it."""
        covariance, apart = self._differences([*searches, Search(target, 0.0, error)])
        known, cross, own = covariance[:-1, :-1], covariance[:-1, -1], covariance[-1, -1]
        weights = np.linalg.solve(known, cross)
        mean = weights @ apart[:-1] - apart[-1]  # the target's own rate counts as 0 in the last difference
        seen = self.freedom + apart[:-1] @ np.linalg.solve(known, apart[:-1])
        freedom = self.freedom + len(searches) - 1
        scale = math.sqrt((own - weights @ cross) * seen / freedom)
        return Prediction(float(mean), scale, freedom)

    def _differences(self, searches: Sequence[Search]) -> tuple[np.ndarray, np.ndarray]:
        """Covariance (N - 1, N - 1) of the searches' rates minus the first one's, and these minus their mean."""
        distances = np.array([search.size.place - searches[0].size.place for search in searches[1:]])  # (N - 1, 4)
        slopes, spreads = (np.array([of[axis] for axis in AXES]) for of in (self.slopes, self.spreads))
        of_noise = np.array([self.noise**2 + search.error**2 for search in searches])
        covariance = (distances * spreads**2) @ distances.T + np.diag(of_noise[1:]) + of_noise[0]
        rates = np.array([search.rate for search in searches])
        return covariance, rates[1:] - rates[0] - distances @ slopes


@functools.cache
def known_laws() -> dict[str, Law]:
    """Rule -> its law, as fitted to the committed sweeps."""
    return {rule: Law(**constants) for rule, constants in json.loads(FILE.read_text()).items()}
