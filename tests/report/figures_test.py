"""What a report's figures show: every error bar is inside its panel."""

import numpy as np
from planted_sweeps import RATES, X, parabola, study_of, sweep_of

from depthmup_flax.report.figures import draw_optima


def noisy(point):
    """Seeds differ several times in the loss, and by octaves in the optimum, which is near the grid's edge."""
    return parabola(point, best=-10.5 + 1.2 * (point["seed"] - 1)) - 0.49 + 0.05 * 3.0 ** point["seed"]


def test_error_bars_are_inside_their_panels():
    figure = draw_optima(study_of(sweep_of(noisy, {"model.depth": (4, 8, 16), X: RATES, "seed": range(3)})))
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


def test_ticks_of_a_hyperparameter_are_not_too_close():
    sweep = sweep_of(parabola, {X: (0.0015, 0.0025, 0.003, 0.006), "model.depth": (4, 8), "seed": range(2)})
    labels = [label.get_text() for label in draw_optima(study_of(sweep)).axes[0].get_yticklabels()]
    assert labels == ["0.0015", "0.0025", "0.006"]
