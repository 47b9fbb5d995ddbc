"""Optima of planted losses are recovered within their intervals."""

import numpy as np
import pytest

from depthmup_flax.report.optimum import belonging, filled, find_optimum, minima, regret, vertices


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


WALLS = [2.1, 2.28, 2.5, 9.7, 180.0, 1e6]  # the loss just beyond the largest stable rate; a constant guess has 2.3


@pytest.mark.parametrize("wall", WALLS)
def test_a_wall_beside_the_minimum_moves_neither_the_optimum_nor_the_lowest_loss_nor_the_regret(wall):
    """A shallow valley that ends in a wall, which no parabola has: every number is that of the valley, to its noise."""
    rng, u, covered, below, costs = np.random.default_rng(2), np.arange(-10.0, -2.0), 0, [], []
    for _ in range(60):
        best = rng.uniform(-6.4, -5.6)
        valley = lambda at: 1.85 + 0.02 * (at - best) ** 2  # noqa: B023
        losses = np.where(u > best + 0.6, wall * 1.2 ** (u + 5), valley(u)) + 0.004 * rng.normal(size=(5, len(u)))
        found = find_optimum(u, losses, draws=100, most=2.3)
        low, high = found.at.interval
        covered += low <= best <= high
        belongs = belonging(u, losses, 2.3)
        below.append(1.85 - minima(u, losses.mean(0), belongs))
        proxy = find_optimum(u, np.tile(0.02 * (u - best + 0.7) ** 2, (5, 1)), 100)
        costs.append(abs(regret(u, losses, proxy, 100, most=2.3).value - (valley(proxy.at.value) - 1.85)))
    assert covered >= 57, covered
    assert max(below) < 0.012, max(below)  # three standard deviations of a mean
    assert max(costs) < 0.02, max(costs)


def test_a_valley_without_noise_keeps_its_parabola_and_its_minimum_between_points():
    u = np.arange(-10.0, -2.0)
    losses = np.tile(1.85 + 0.02 * (u + 5.5) ** 2, (3, 1))
    assert find_optimum(u, losses, most=2.3).at.value == pytest.approx(-5.5)
    assert minima(u, losses.mean(0), belonging(u, losses, 2.3)) == pytest.approx(1.85)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("lost", [2, 3, 4])
def test_an_interval_beside_a_filled_loss_covers_the_truth_nearly_as_often_as_it_says(lost, seeds):
    random, u, covers = np.random.default_rng(1), np.arange(-11.0, -5.0), []
    for _ in range(600):
        best = random.uniform(-8.5, -7.5)
        noise = random.normal(size=(seeds, 1)) + random.normal(size=(seeds, len(u)))
        losses, present = 0.05 * (u - best) ** 2 + 0.01 * noise, np.ones((seeds, len(u)), bool)
        present[random.integers(seeds), lost] = False
        low, high = find_optimum(u, filled(np.where(present, losses, np.nan), present), 100).at.interval
        covers.append(low <= best <= high)
    assert 0.82 < np.mean(covers) < 0.98
