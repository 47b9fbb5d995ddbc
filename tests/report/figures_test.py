"""What a report's figures show: every error bar is inside its panel."""

import math

import numpy as np
import pytest
from planted_sweeps import RATES, X, parabola, study_of, sweep_of

from depthmup_flax.report.figures import draw_optima, draw_parameters
from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.transfer import log_interval


def noisy(point):
    """Seeds differ several times in the loss, and by octaves in the optimum, which is near the grid's edge."""
    return parabola(point, best=-10.5 + 1.2 * (point["seed"] - 1)) - 0.49 + 0.05 * 3.0 ** point["seed"]


@pytest.mark.parametrize("draw", [draw_parameters, draw_optima])
def test_error_bars_are_inside_their_panels(draw):
    figure = draw(study_of(sweep_of(noisy, {"model.depth": (4, 8, 16), X: RATES, "seed": range(3)})))
    bars = 0
    for axes in figure.axes:
        low, high = axes.get_ylim()
        for container in axes.containers:
            (lines,) = container[2]
            ends = np.concatenate([segment[:, 1] for segment in lines.get_segments()])
            assert (low < ends).all()
            assert (ends < high).all()
            bars += len(ends) // 2
    assert bars >= 3


def test_the_interval_of_a_positive_loss_is_that_of_its_logarithm():
    logs = np.array([-1.0, 0.0, 1.0, 0.5])
    spread = 4.302652729911275 * math.sqrt(3 / 2) * logs.std()  # Student's t for three seeds
    interval = log_interval(Estimate(2.0, np.exp(logs), 3))
    assert interval == pytest.approx((2 * math.exp(-spread), 2 * math.exp(spread)))
    assert log_interval(Estimate(2.0, None, 1)) == pytest.approx((2.0, 2.0))


def test_ticks_of_a_hyperparameter_are_not_too_close():
    sweep = sweep_of(parabola, {X: (0.0015, 0.0025, 0.003, 0.006), "model.depth": (4, 8), "seed": range(2)})
    labels = [label.get_text() for label in draw_optima(study_of(sweep)).axes[0].get_yticklabels()]
    assert labels == ["0.0015", "0.0025", "0.006"]
