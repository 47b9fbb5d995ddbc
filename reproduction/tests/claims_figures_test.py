"""The papers' figures of a sweep: error bars are inside their panels, and what is fitted is recovered."""

import math

import numpy as np
import pytest
from planted_sweeps import MULTIPLIER, RATES, X, parabola, study_of, sweep_of

from depthmup_flax.report.optimum import Estimate
from reproduction.claims.figures import draw_parameters, log_interval, power_laws, save_figures
from reproduction.claims.valleys import valley_angle


def noisy(point):
    """Seeds differ several times in the loss."""
    return parabola(point, best=-10.5 + 1.2 * (point["seed"] - 1)) - 0.49 + 0.05 * 3.0 ** point["seed"]


def test_error_bars_are_inside_their_panels():
    figure = draw_parameters(study_of(sweep_of(noisy, {"model.depth": (4, 8, 16), X: RATES, "seed": range(3)})))
    for axes in figure.axes:
        low, high = axes.get_ylim()
        for container in axes.containers:
            (lines,) = container[2]
            ends = np.concatenate([segment[:, 1] for segment in lines.get_segments()])
            assert low < ends.min()
            assert ends.max() < high


def test_the_interval_of_a_positive_loss_is_that_of_its_logarithm():
    logs = np.array([-1.0, 0.0, 1.0, 0.5])
    spread = 4.302652729911275 * math.sqrt(3 / 2) * logs.std()  # Student's t for three seeds
    interval = log_interval(Estimate(2.0, np.exp(logs), 3))
    assert interval == pytest.approx((2 * math.exp(-spread), 2 * math.exp(spread)))
    assert log_interval(Estimate(2.0, None, 1)) == pytest.approx((2.0, 2.0))


def test_a_sweep_of_two_hyperparameters_over_sizes_has_every_figure(tmp_path):
    axes = {"model.depth": (4, 8, 16), MULTIPLIER: (0.5, 1.0, 2.0), X: RATES[2::2], "seed": range(2)}
    save_figures(study_of(sweep_of(lambda point: None if point[X] > 0.1 else noisy(point), axes)), tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {"curves", "over_time", "heatmap", "parameters"}


def test_a_planted_power_law_is_recovered():
    def loss(point):
        return 3.0 * (point["model.width"] ** 2 * point["model.depth"]) ** -0.2 + 0.1 * (math.log2(point[X]) + 8) ** 2

    axes = {"model.width": (32, 64, 128), "model.depth": (4, 8, 16), X: RATES, "seed": range(2)}
    laws = power_laws(study_of(sweep_of(loss, axes)).rows)
    exponents = [law.value for name in ("depth", "width") for law in laws[name].values()]
    assert exponents == pytest.approx([0.2] * 6)


def test_a_planted_valley_of_slope_minus_two_is_recovered():
    rng, u, v = np.random.default_rng(0), np.arange(-7.0, 8.0), np.arange(-9.0, 10.0)
    across, along = 2 * u[None] + v[:, None], u[None] - 2 * v[:, None]
    losses = 0.3 + 0.02 * across**2 + 0.0002 * along**2 + 0.001 * rng.normal(size=(3, len(v), len(u)))
    low, high = valley_angle(u, v, losses, draws=50).interval
    assert math.tan(low) < -2 < math.tan(high) < -1


def test_a_round_valley_has_no_slope():
    u = np.arange(-5.0, 6.0)
    assert valley_angle(u, u, (u[None] ** 2 + u[:, None] ** 2)[None]) is None
