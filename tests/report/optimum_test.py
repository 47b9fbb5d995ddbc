"""Optima of planted losses are recovered within their intervals."""

import numpy as np
import pytest

from depthmup_flax.report.optimum import find_optimum, vertices


def test_vertices_agree_with_a_polynomial_fit_on_uneven_grids():
    rng = np.random.default_rng(0)
    for _ in range(50):
        u = np.sort(rng.uniform(-3, 3, 3))
        curve = np.array([rng.uniform(0.5, 2), 0, 100])  # far above 0, as losses are
        curve[1] = -2 * curve[0] * rng.uniform((u[0] + u[1]) / 2, (u[1] + u[2]) / 2)  # u[1] stays the lowest
        losses = np.polyval(curve, u)
        fitted = np.polyfit(u, losses, 2)
        assert vertices(u, losses) == pytest.approx(-fitted[1] / (2 * fitted[0]), abs=1e-6)


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_interval_covers_the_planted_optimum_in_most_noisy_sweeps(seeds):
    rng, u, covered = np.random.default_rng(1), np.arange(-12.0, -4.0), 0
    for _ in range(100):
        best = rng.uniform(-9, -7)
        moved = best + 0.15 * rng.normal(size=(seeds, 1))
        losses = 0.5 + 0.1 * (u - moved) ** 2 + 0.005 * rng.normal(size=(seeds, len(u)))
        low, high = find_optimum(u, losses, draws=100).at.interval
        covered += low <= best <= high
    assert covered >= 85, covered
