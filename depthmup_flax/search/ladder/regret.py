"""What an error of the rate costs: a measured loss curve, read at the distances that the law expects."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from depthmup_flax.report.optimum import EDGES, ONE_VALUE, belonging, excess, find_optimum, vertices
from depthmup_flax.search.ladder.law import Prediction, Search, Size

_COUNT = 1001  # equally likely errors
_FEWEST = 3  # rates of a curve


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """The losses of one size against the rate, and where they are lowest.

    Letters in shapes: S seeds, X rates, N errors.
    """

    rates: np.ndarray  # (X,) log2, ascending
    losses: np.ndarray  # (S, X), NaN if a run diverged
    most: float = math.inf  # the loss before learning, above which a point is no part of a fit

    def search(self, size: Size, one_seed: float) -> Search | str:
        """The best rate and its error; or why there is none: ``lowest of the grid`` or another flag of an optimum.

        ``one_seed`` is the error of a search with a single seed.
        """
        best = find_optimum(self.rates, self.losses, most=self.most)
        if best is None:
            return "all diverged"
        means = self.losses.mean(0)
        if len(means) > 1 and np.ptp(means[np.isfinite(means)]) == 0:
            return "equal losses"
        if len(self.rates) < _FEWEST or best.flag in (*EDGES, ONE_VALUE):
            return best.flag or "too few rates"
        error = one_seed if len(self.losses) == 1 else best.at.standard_error
        return Search(size, best.at.value, max(error, best.at.resolution / 1.96))

    @property
    def error_of_two(self) -> float:
        """How far the noise of losses moves the best rate of two seeds, in octaves; 0 for other numbers of seeds.

        The noise is pooled over the lowest loss and the two on either side: the best rates of two seeds agree by chance
        too often. With more seeds the law was measured with their own error.
        """
        means, seeds = self.losses.mean(0), len(self.losses)
        lowest = int(np.nanargmin(means))
        near = slice(max(0, lowest - 2), lowest + 3)
        u, losses = self.rates[near], self.losses[:, near]
        u, losses = u[np.isfinite(losses).all(0)], losses[:, np.isfinite(losses).all(0)]
        if seeds != 2 or len(u) < _FEWEST:
            return 0.0
        apart = losses - losses.mean(0)
        apart = apart - apart.mean(1, keepdims=True)  # what a seed has at all rates moves no minimum
        error = math.sqrt((apart**2).sum() / ((len(u) - 1) * seeds))  # of a mean loss
        belongs = belonging(u, losses, self.most)
        moved = [vertices(u, losses.mean(0) + sign * error * np.eye(len(u)), belongs) for sign in (1, -1)]
        return float(np.linalg.norm(moved[0] - moved[1])) / 2

    def regret(self, errors: np.ndarray) -> np.ndarray:
        """The loss at the best rate times ``2^errors``, (N,), minus the lowest one; not below 0.

        Below the lowest rate and above the highest one the line through the last two goes on; above a rate at which
        runs diverge it is infinite.
        """
        means = self.losses.mean(0)
        start = int(np.nanargmin(means))
        first = max((i + 1 for i in range(start) if not np.isfinite(means[i])), default=0)
        end = next((i for i in range(start, len(means)) if not np.isfinite(means[i])), len(means))
        u, means, losses = self.rates[first:end], means[first:end], self.losses[:, first:end]
        belongs = belonging(u, losses, self.most)
        at = errors + vertices(u, means, belongs)
        inside = np.clip(at, u[0], u[-1])
        result = excess(u, np.tile(means, (len(at), 1)), inside, belongs)
        if len(u) > 1:
            below = max((means[0] - means[1]) / (u[1] - u[0]), 0.0)
            above = max((means[-1] - means[-2]) / (u[-1] - u[-2]), 0.0) if end == len(self.rates) else math.inf
            result = result + np.where(at < u[0], below * (u[0] - at), 0.0)
            result = result + np.where(at > u[-1], above * np.where(at > u[-1], at - u[-1], 1.0), 0.0)
        return result


@dataclasses.dataclass(frozen=True)
class Regret:
    """What the predicted rate costs, as a share of what is learned, or of the loss."""

    mean: float
    high: float  # 90th percentile


def expected_regret(curve: Curve, prediction: Prediction, unit: float, kept: float | None = None) -> Regret:
    """Of the predicted rate, or of the log2 rate ``kept``, if the target's curve has the shape of this one.

    A share of ``unit``, at most 1.
    """
    off = 0.0 if kept is None else kept - prediction.mean
    shares = np.minimum(curve.regret(off - prediction.quantiles(_COUNT)) / unit, 1.0)
    return Regret(float(shares.mean()), float(np.quantile(shares, 0.9)))
