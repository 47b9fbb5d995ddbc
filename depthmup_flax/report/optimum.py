"""The minimum of a loss curve and its confidence interval: parabolas, a bootstrap over seeds, slopes. NumPy only.

Letters in shapes: D bootstrap draws, S seeds, X grid points.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.special  # scipy.stats takes half a second to import

DRAWS = 1000
EDGE_LOW, EDGE_HIGH, ONE_VALUE = "lowest of the grid", "highest of the grid", "one value"
NEXT_TO_DIVERGENCE = "next to divergence"
# A finite loss this many times the lowest counts as diverged: it would pull a parabola's vertex to the middle.
_EXPLODED = 100.0


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """A number and its bootstrap distribution.

    Attributes:
      value: from the mean over all seeds.
      draws: (D,) the same from resampled seeds; ``None`` if uninformative (one seed, an optimum at the grid's edge).
      seeds: S.
      resolution: lower bound of the interval's half-width; half a grid step for an optimum that is a grid point.
    """

    value: float
    draws: np.ndarray | None
    seeds: int
    resolution: float = 0.0

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval: ``t_{0.975}(S - 1) sqrt(S / (S - 1)) std(draws)``; ``None`` if unknown.

        For a mean over seeds this is Student's interval. A bootstrap's percentiles are too narrow for the few seeds of
        a sweep: with three, they cover the truth three times in four (Efron and Tibshirani, 1993, section 12.5).
        """
        if self.draws is None:
            return None
        factor = scipy.special.stdtrit(self.seeds - 1, 0.975) * math.sqrt(self.seeds / (self.seeds - 1))
        return max(float(factor * np.std(self.draws)), self.resolution)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval."""
        half = self.half_width
        return None if half is None else (self.value - half, self.value + half)

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference. Equal seeds are resampled together, so noise that they share cancels."""
        draws = None if self.draws is None or other.draws is None else self.draws - other.draws
        resolution = math.hypot(self.resolution, other.resolution)
        return Estimate(self.value - other.value, draws, min(self.seeds, other.seeds), resolution)


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The minimum of one curve.

    Attributes:
      grid: index of the lowest mean loss.
      at: coordinate of the parabola's vertex.
      loss: the lowest mean loss on the grid.
      flag: why ``at`` is not a vertex between finite neighbors; empty if it is.
    """

    grid: int
    at: Estimate
    loss: Estimate
    flag: str


def resampled_means(losses: np.ndarray, draws: int = DRAWS) -> np.ndarray:
    """(S, ...) -> (D, ...): means over seeds drawn with replacement, the same draws for every curve.

    If any seed is NaN at a point, all of its draws are.
    """
    seeds = len(losses)
    indices = np.random.default_rng(0).integers(seeds, size=(draws, seeds))
    counts = np.bincount((indices + seeds * np.arange(draws)[:, None]).ravel(), minlength=draws * seeds)
    weights = counts.reshape(draws, seeds) / seeds
    return np.einsum("ds,s...->d...", weights, losses)


def vertices(coordinates: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """(X,), (..., X) -> (...): the vertex of the parabola through the lowest point and its two neighbors.

    With points (u0, l0), (u1, l1), (u2, l2), divided differences d1 = (l1 - l0)/(u1 - u0), d2 = (l2 - l1)/(u2 - u1) and
    c = (d2 - d1)/(u2 - u0), Newton's form l0 + d1 (u - u0) + c (u - u0)(u - u1) is lowest at
    ``u = (u0 + u1)/2 - d1 / (2 c)``, clipped to [u0, u2]. The result is u1 if a neighbor is absent, not finite or a
    hundred times as high, or if c <= 0; NaN if nothing is finite.
    """
    filled = np.where(np.isfinite(losses), losses, np.inf)
    lowest, last = filled.argmin(-1), len(coordinates) - 1
    around = [np.clip(lowest + k, 0, last) for k in (-1, 0, 1)]
    u0, u1, u2 = (coordinates[i] for i in around)
    l0, l1, l2 = (np.take_along_axis(filled, i[..., None], -1)[..., 0] for i in around)
    with np.errstate(all="ignore"):
        d1, d2 = (l1 - l0) / (u1 - u0), (l2 - l1) / (u2 - u1)
        curvature = (d2 - d1) / (u2 - u0)
        vertex = np.clip((u0 + u1) / 2 - d1 / (2 * curvature), u0, u2)
    inside = (lowest > 0) & (lowest < last) & _comparable(l0, l1) & _comparable(l2, l1) & (curvature > 0)
    return np.where(np.isfinite(l1), np.where(inside, vertex, u1), np.nan)


def _comparable(neighbor: np.ndarray, lowest: np.ndarray) -> np.ndarray:
    """Whether a loss is finite and at most `_EXPLODED` times the lowest."""
    return np.isfinite(neighbor) & ((lowest <= 0) | (neighbor <= _EXPLODED * lowest))


def find_optimum(coordinates: np.ndarray, losses: np.ndarray, draws: int = DRAWS) -> Optimum | None:
    """The minimum of losses (S, X), NaN for diverged runs, at coordinates (X,); ``None`` if every point has a NaN."""
    means = losses.mean(0)
    if not np.isfinite(means).any():
        return None
    grid, last, seeds = int(np.nanargmin(means)), len(means) - 1, len(losses)
    flag, resolution = ONE_VALUE if last == 0 else {0: EDGE_LOW, last: EDGE_HIGH}.get(grid, ""), 0.0
    # At an edge all draws agree, which says nothing about an optimum beyond the edge.
    resampled = resampled_means(losses, draws) if seeds > 1 else None
    at_draws = None if resampled is None or flag else vertices(coordinates, resampled)
    if not flag and not _comparable(means[[grid - 1, grid + 1]], means[grid]).all():
        flag, resolution = NEXT_TO_DIVERGENCE, float(coordinates[grid + 1] - coordinates[grid - 1]) / 4
    at = Estimate(float(vertices(coordinates, means)), at_draws, seeds, resolution)
    loss_draws = None if resampled is None else np.nanmin(resampled, -1)
    return Optimum(grid, at, Estimate(float(means[grid]), loss_draws, seeds), flag)


def regret(losses: np.ndarray, transferred: int) -> Estimate | None:
    """Mean loss at grid index ``transferred`` minus the lowest mean loss; ``None`` if a seed diverged there."""
    means, seeds = losses.mean(0), len(losses)
    if not np.isfinite(means[transferred]):
        return None
    resampled = resampled_means(losses)
    differences = resampled[:, transferred] - np.nanmin(resampled, -1)
    return Estimate(float(means[transferred] - np.nanmin(means)), differences if seeds > 1 else None, seeds)


def slope(positions: Sequence[float], estimates: Sequence[Estimate]) -> Estimate | None:
    """Least-squares slope of estimates against positions, (N,) each, refitted in every draw.

    ``None`` for N < 3, or if all positions are equal.
    """
    if len(positions) < 3 or min(positions) == max(positions):
        return None
    centered = np.asarray(positions, np.float64) - np.mean(positions)
    weights = centered / (centered**2).sum()
    draws = [e.draws for e in estimates if e.draws is not None]
    known = weights @ np.stack(draws) if len(draws) == len(estimates) else None
    return Estimate(float(weights @ [e.value for e in estimates]), known, min(e.seeds for e in estimates))


def sublevel_set(means: np.ndarray) -> np.ndarray:
    """Losses (Y, X), NaN where missing -> (Y, X) whether loss <= min + 0.1 (median - min)."""
    finite = means[np.isfinite(means)]
    level = finite.min() + 0.1 * (np.median(finite) - finite.min()) if len(finite) else np.nan
    return means <= level


def direction(u: np.ndarray, v: np.ndarray) -> tuple[float, float]:
    """The first principal direction of points (N,), (N,) in a plane: total least squares.

    Its angle in [-pi/2, pi/2], whose tangent is the slope of v against u, and the points' standard deviation along it.
    Both are NaN for fewer than three points, or if they spread less than 1.5 times as far along it as across.
    """
    values, vectors = np.linalg.eigh(np.cov(u, v, bias=True)) if len(u) > 2 else (np.ones(2), np.eye(2))
    if values[1] < 1.5**2 * values[0]:
        return math.nan, math.nan
    du, dv = vectors[:, 1] * (1 if vectors[0, 1] >= 0 else -1)
    return math.atan2(dv, du), math.sqrt(values[1])


def valley_angle(u: np.ndarray, v: np.ndarray, losses: np.ndarray, draws: int = 200) -> Estimate | None:
    """The `direction` of the optimal `sublevel_set` of losses (S, Y, X); draws are taken modulo pi around it.

    Each of N points on a grid of cells du * dv has the uncertainty sqrt(du dv / 12), so the angle has at least
    ``1.96 sqrt(du dv / 12) / (sqrt(N) * deviation along it)``, however little the seeds differ. ``None`` without a
    direction, or with a single u or v; no draws if any of them has none.
    """
    if min(len(u), len(v)) < 2:
        return None

    def of(means: np.ndarray) -> tuple[float, float, int]:
        rows, columns = np.nonzero(sublevel_set(means))
        return *direction(u[columns], v[rows]), len(rows)

    angle, length, count = of(losses.mean(0))
    if math.isnan(angle):
        return None
    cell = math.sqrt(np.diff(u).mean() * np.diff(v).mean() / 12)
    resolution, seeds = 1.96 * cell / (math.sqrt(count) * length), len(losses)
    if seeds == 1:
        return Estimate(angle, None, seeds, resolution)
    angles = np.array([of(means)[0] for means in resampled_means(losses, draws)])
    angles = angle + (angles - angle + math.pi / 2) % math.pi - math.pi / 2
    return Estimate(angle, None if np.isnan(angles).any() else angles, seeds, resolution)
