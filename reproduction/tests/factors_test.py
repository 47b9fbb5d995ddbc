"""reproduction/factors: factors of branches are what the cells say, and costs are those of planted curves."""

import numpy as np
import pytest

from depthmup_flax.search.sweep.grid import expand
from reproduction.factors import table
from reproduction.factors.cells import CELLS, DECAY_EXPONENT, MARIN, SIZES, Cell


@pytest.mark.parametrize("size", SIZES.values())
def test_the_exponent_of_the_width_ratio_gives_the_factor_of_decay(size):
    cell = Cell("plain", "decay")
    config = cell.carrying({"optimizer.learning_rate": 0.01, "optimizer.weight_decay": 1.0}, size)
    exponents = {run.point[DECAY_EXPONENT] for run in expand(config)}
    ratio = size[0] / config.base.model.base_width
    assert sorted(ratio**one for one in exponents) == pytest.approx(cell.factors)


def test_marins_fit_is_the_rules_factor_times_what_is_said():
    of_rule = 4**-0.5 * 4**-0.5
    assert of_rule * MARIN == pytest.approx(4**-0.37)
    assert all(MARIN in cell.factors for cell in CELLS if cell.varied == "rate")


def test_a_cost_is_above_the_best_factor_and_paired_by_seeds():
    factors, seeds = (0.25, 0.5, 1.0, 2.0, 4.0), np.array([[0.0], [0.5], [-0.2]])
    curve = table.Curve(factors, 1 + 0.1 * (np.log2(factors) - 0.3) ** 2 + seeds)
    assert curve.best() == pytest.approx((0.3, 0), abs=1e-6)
    assert curve.cost(1.0) == (0, 0)
    assert curve.above_ours(2.0) == pytest.approx([0.1 * (0.7**2 - 0.3**2)] * 3)
    assert curve.cost(2.0) == pytest.approx((0.1 * (0.7**2 - 0.3**2), 0), abs=1e-6)


def test_rules_differ_only_where_the_size_has_grown():
    assert table.rules(Cell("plain", "rate"), SIZES["deep"]) == {"m^-1/2 r^-1/2 (ours)": 1.0, "m^-1/2": 2.0}
    assert table.rules(Cell("plain", "rate"), SIZES["wide"]) == {"m^-1/2 r^-1/2 (ours)": 1.0, "r^-1/2": 2.0}
    assert table.rules(Cell("norm", "decay"), SIZES["both"]) == {"constant (ours)": 1.0, "r^-1/2": 0.5, "1/r": 0.25}
