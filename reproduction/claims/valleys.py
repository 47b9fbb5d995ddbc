"""The region of lowest losses over two hyperparameters, and its direction, with an interval."""

from __future__ import annotations

import math

import numpy as np

from depthmup_flax.report.optimum import Estimate, resampled_means


def sublevel_set(means: np.ndarray) -> np.ndarray:
    """Losses (Y, X), NaN where missing -> (Y, X): whether loss <= min + 0.1 (median - min)."""
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

    Each of N points on a grid of cells du * dv has the uncertainty sqrt(du dv / 12), so the angle's resolution is
    ``1.96 sqrt(du dv / 12) / (sqrt(N) * deviation along it)``. ``None`` without a direction, or with a single u or v;
    no draws if one of them has no direction.
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
