"""The minimum of a loss curve and its confidence interval: parabolas, a bootstrap over seeds, slopes.

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
EDGES = (EDGE_LOW, EDGE_HIGH)
NEXT_TO_DIVERGENCE = "next to divergence"


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """A number and its bootstrap distribution."""

    value: float  # from the mean over all seeds
    # (D,) the same from resampled seeds; None for one seed or an optimum at the grid's edge.
    draws: np.ndarray | None = dataclasses.field(repr=False)
    seeds: int
    resolution: float = 0.0  # least half-width of the interval; half a grid step for an optimum that is a grid point

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval: ``t_{0.975}(S - 1) sqrt(S / (S - 1)) std(draws)``; ``None`` if unknown.

        For a mean over seeds this is Student's interval. A bootstrap's percentiles are too narrow for the few seeds of
        a sweep: with three, they cover the truth three times in four (Efron and Tibshirani, 1993, section 12.5).
        """
        if self.draws is None:
            return None
        return max(float(scipy.special.stdtrit(self.seeds - 1, 0.975)) * self.standard_error, self.resolution)

    @property
    def standard_error(self) -> float:
        """``sqrt(S / (S - 1)) std(draws)``; NaN without draws."""
        if self.draws is None:
            return math.nan
        return math.sqrt(self.seeds / (self.seeds - 1)) * float(np.std(self.draws))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval."""
        half = self.half_width
        return None if half is None else (self.value - half, self.value + half)

    def __neg__(self) -> Estimate:
        """The negative number."""
        return weighted_sum([-1.0], [self])

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference. Equal seeds are resampled together, so noise that they share cancels."""
        return weighted_sum([1.0, -1.0], [self, other])


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The minimum of one curve."""

    grid: int  # index of the lowest mean loss
    at: Estimate  # coordinate of the parabola's vertex
    loss: Estimate  # the lowest mean loss on the grid
    flag: str  # why `at` is not a vertex between finite neighbors; empty if it is


def resampled_means(losses: np.ndarray, draws: int = DRAWS) -> np.ndarray:
    """(S, ...) -> (D, ...): means over seeds drawn with replacement, alike for every curve; NaN where a seed is."""
    seeds = len(losses)
    indices = np.random.default_rng(0).integers(seeds, size=(draws, seeds))
    counts = np.bincount((indices + seeds * np.arange(draws)[:, None]).ravel(), minlength=draws * seeds)
    weights = counts.reshape(draws, seeds) / seeds
    return np.einsum("ds,s...->d...", weights, losses)


def filled(losses: np.ndarray, present: np.ndarray) -> np.ndarray:
    """(S, X), (S, X) -> (S, X): losses where no run is, from those of the other seeds there; NaN where one diverged.

    Such a loss is the mean of its column, plus what its seed's are above others: the median over whole columns. It has
    no noise of its own: beside an optimum, 95 % intervals cover in .86 to .94 of cases (tests/report/optimum_test.py).
    """
    whole = losses[:, np.isfinite(losses).all(0) & present.all(0)]
    above = np.median(whole - whole.mean(0), 1) if whole.size else np.zeros(len(losses))
    sums = np.where(present, losses - above[:, None], 0.0).sum(0)
    means = sums / np.maximum(present.sum(0), 1)
    return np.where(present, losses, np.where(present.any(0), means, np.nan) + above[:, None])


@dataclasses.dataclass(frozen=True, eq=False)
class Parabolas:
    """The parabola through the lowest point of each curve and its two neighbors; shapes (...,).

    With points (u0, l0), (u1, l1), (u2, l2), divided differences d1 = (l1 - l0)/(u1 - u0), d2 = (l2 - l1)/(u2 - u1) and
    c = (d2 - d1)/(u2 - u0), Newton's form l0 + d1 (u - u0) + c (u - u0)(u - u1) is lowest at
    ``u = (u0 + u1)/2 - d1 / (2 c)``. ``valid`` is whether both neighbors are present and belong to it, and c > 0.
    """

    u0: np.ndarray
    u1: np.ndarray
    u2: np.ndarray
    l0: np.ndarray
    l1: np.ndarray
    d1: np.ndarray
    curvature: np.ndarray
    valid: np.ndarray

    @property
    def vertex(self) -> np.ndarray:
        """Where it is lowest, clipped to [u0, u2]; u1 if it is not valid; NaN if nothing is finite."""
        with np.errstate(all="ignore"):
            vertex = np.clip((self.u0 + self.u1) / 2 - self.d1 / (2 * self.curvature), self.u0, self.u2)
        return np.where(np.isfinite(self.l1), np.where(self.valid, vertex, self.u1), np.nan)

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """(...,) -> (...,): the parabola where it is valid and u in [u0, u2]; else NaN."""
        with np.errstate(all="ignore"):
            value = self.l0 + self.d1 * (u - self.u0) + self.curvature * (u - self.u0) * (u - self.u1)
        return np.where(self.valid & (self.u0 <= u) & (u <= self.u2), value, np.nan)


def parabolas(coordinates: np.ndarray, losses: np.ndarray, belongs: np.ndarray | bool = True) -> Parabolas:
    """(X,), (..., X) -> (...); ``belongs``, (X,), is whether a point may be a neighbor, see `belonging`."""
    filled = np.where(np.isfinite(losses), losses, np.inf)
    lowest, last = filled.argmin(-1), len(coordinates) - 1
    around = [np.clip(lowest + k, 0, last) for k in (-1, 0, 1)]
    u0, u1, u2 = (coordinates[i] for i in around)
    l0, l1, l2 = (np.take_along_axis(filled, i[..., None], -1)[..., 0] for i in around)
    with np.errstate(all="ignore"):
        d1, d2 = (l1 - l0) / (u1 - u0), (l2 - l1) / (u2 - u1)
        curvature = (d2 - d1) / (u2 - u0)
    usable = np.broadcast_to(belongs, len(coordinates))[np.stack(around)]
    valid = (lowest > 0) & (lowest < last) & usable[0] & usable[2] & np.isfinite(l0) & np.isfinite(l2) & (curvature > 0)
    return Parabolas(u0, u1, u2, l0, l1, d1, curvature, valid)


def belonging(coordinates: np.ndarray, losses: np.ndarray, most: float = math.inf) -> np.ndarray:
    """(X,), (S, X) -> (X,): whether a point may be a neighbor in the parabola of a curve.

    A loss that explodes pulls the vertex half-way to the other neighbor, and the minimum far below all runs. So no mean
    above ``most``, the loss before learning, belongs, nor one with which the minimum is below all points by more than
    the half-width of the lowest, where the line through the next two does not lead.
    """
    means, (seeds, count) = losses.mean(0), losses.shape
    belongs = np.isfinite(means) & ~(means > most)
    fit = parabolas(coordinates, means, belongs)
    if seeds > 1 and fit.valid:
        lowest, vertex = int(np.nanargmin(means)), float(fit.vertex)
        toward = -1 if vertex < fit.u1 else 1
        near, far = lowest + toward, lowest + 2 * toward
        least = fit.l1 - scipy.special.stdtrit(seeds - 1, 0.975) * losses[:, lowest].std(ddof=1) / math.sqrt(seeds)
        if 0 <= far < count and belongs[far]:
            line = (means[near] - means[far]) / (coordinates[near] - coordinates[far])
            least = min(least, means[near] + line * (vertex - coordinates[near]))
        belongs[lowest - toward] &= float(minima(coordinates, means, belongs)) >= least
    return np.asarray(belongs)


def vertices(coordinates: np.ndarray, losses: np.ndarray, belongs: np.ndarray | bool = True) -> np.ndarray:
    """(X,), (..., X) -> (...): where the parabola through the lowest point is lowest, see `Parabolas`."""
    return parabolas(coordinates, losses, belongs).vertex


def minima(coordinates: np.ndarray, losses: np.ndarray, belongs: np.ndarray | bool = True) -> np.ndarray:
    """(X,), (..., X) -> (...): the lowest value of the parabola of `Parabolas`, or without one the lowest loss."""
    near = parabolas(coordinates, losses, belongs)
    return np.where(near.valid, near(near.vertex), near.l1)


def excess(coordinates: np.ndarray, means: np.ndarray, at: np.ndarray, belongs: np.ndarray | bool = True) -> np.ndarray:
    """(X,), (..., X) finite, (...) -> (...): the fitted curve at ``at`` minus its minimum; never negative.

    The curve is the parabola of `Parabolas` within its three points, and beyond them the monotone cubic of Fritsch and
    Carlson (1980) through all points, so neither an explosion nor a kink makes a minimum. Without a valid parabola
    the cubic is used everywhere, and its minimum is the lowest point.
    """
    from scipy.interpolate import PchipInterpolator  # takes 0.2 s to import

    if len(coordinates) == 1:
        return np.zeros(means.shape[:-1])
    flat, u = means.reshape(-1, means.shape[-1]), np.broadcast_to(at, means.shape[:-1]).reshape(-1)
    c = PchipInterpolator(coordinates, flat.T).c  # (4, X - 1, ...)
    k = np.clip(np.searchsorted(coordinates, u, side="right") - 1, 0, len(coordinates) - 2)
    c3, c2, c1, c0 = c[:, k, np.arange(len(u))]
    t = u - coordinates[k]
    near = parabolas(coordinates, flat, belongs)
    inside = near(u)
    value = np.where(np.isnan(inside), ((c3 * t + c2) * t + c1) * t + c0, inside)
    return np.maximum(value - minima(coordinates, flat, belongs), 0.0).reshape(means.shape[:-1])  # below 0 by rounding


def find_optimum(
    coordinates: np.ndarray, losses: np.ndarray, draws: int = DRAWS, *, most: float = math.inf
) -> Optimum | None:
    """The minimum of losses (S, X), NaN for diverged runs, at coordinates (X,); ``None`` if every point has a NaN.

    ``most`` is the loss before learning, see `belonging`.
    """
    means = losses.mean(0)
    if not np.isfinite(means).any():
        return None
    grid, last, seeds = int(np.nanargmin(means)), len(means) - 1, len(losses)
    flag, resolution = ONE_VALUE if last == 0 else {0: EDGE_LOW, last: EDGE_HIGH}.get(grid, ""), 0.0
    belongs = belonging(coordinates, losses, most)
    # At an edge all draws agree, even if the optimum lies beyond it.
    resampled = resampled_means(losses, draws) if seeds > 1 else None
    at_draws = None if resampled is None or flag else vertices(coordinates, resampled, belongs)
    if not flag and not belongs[[grid - 1, grid + 1]].all():
        flag, resolution = NEXT_TO_DIVERGENCE, float(coordinates[grid + 1] - coordinates[grid - 1]) / 4
    at = Estimate(float(vertices(coordinates, means, belongs)), at_draws, seeds, resolution)
    loss_draws = None if resampled is None else np.nanmin(resampled, -1)
    return Optimum(grid, at, Estimate(float(means[grid]), loss_draws, seeds), flag)


def regret(
    coordinates: np.ndarray, losses: np.ndarray, proxy: Optimum, draws: int = DRAWS, *, most: float = math.inf
) -> Estimate | None:
    """What the proxy's optimum costs here: the fitted curve there minus its minimum, by `excess`.

    The proxy's choice is resampled together with this curve: each draw takes the minimum of the proxy's resampled curve
    to this one's. With equal seeds the draws are paired. ``losses`` are (S, X), NaN for diverged runs.

    ``None`` if a seed diverged at the grid point next to the proxy's optimum.
    """
    means, seeds = losses.mean(0), len(losses)
    finite = np.isfinite(means)
    if not finite[np.abs(coordinates - proxy.at.value).argmin()]:
        return None
    u = coordinates[finite]
    belongs = belonging(coordinates, losses, most)[finite]
    value = float(excess(u, means[finite], np.clip(proxy.at.value, u[0], u[-1]), belongs))
    if seeds == 1 or proxy.at.seeds == 1:
        return Estimate(value, None, min(seeds, proxy.at.seeds))
    # At an edge of its grid the proxy's choice does not vary.
    at = np.full(draws, proxy.at.value) if proxy.at.draws is None else proxy.at.draws
    resampled = resampled_means(losses[:, finite], draws)
    return Estimate(value, excess(u, resampled, np.clip(at, u[0], u[-1]), belongs), min(seeds, proxy.at.seeds))


def weighted_sum(weights: Sequence[float] | np.ndarray, estimates: Sequence[Estimate]) -> Estimate:
    """The sum of weights times estimates, resampled together; no draws if one of them has none."""
    draws = [e.draws for e in estimates if e.draws is not None]
    known = np.asarray(weights) @ np.stack(draws) if len(draws) == len(estimates) else None
    resolution = math.hypot(*(w * e.resolution for w, e in zip(weights, estimates, strict=True)))
    value = math.fsum(w * e.value for w, e in zip(weights, estimates, strict=True))
    return Estimate(value, known, min(e.seeds for e in estimates), resolution)


def slope(positions: Sequence[float], estimates: Sequence[Estimate]) -> Estimate | None:
    """Least-squares slope of estimates against positions, (N,), refitted in every draw.

    ``None`` for N < 3, or if all positions are equal.
    """
    if len(positions) < 3 or min(positions) == max(positions):
        return None
    centered = np.asarray(positions, np.float64) - np.mean(positions)
    return dataclasses.replace(weighted_sum(centered / (centered**2).sum(), estimates), resolution=0.0)
