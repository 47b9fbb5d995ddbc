"""A report that has every figure, for all tests of what is in it."""

import math

import pytest
from planted_sweeps import MULTIPLIER, RATES, X, parabola, sweep_of, write

from depthmup_flax.report import make_report


def _loss(point):
    rate, multiplier = math.log2(point[X]), math.log2(point[MULTIPLIER])
    return None if rate > -5 else parabola(point, noise=0.1) + 0.05 * (multiplier + rate + 8) ** 2


@pytest.fixture(scope="session")
def full_sweep():
    """Two hyperparameters over three depths with two seeds; high rates diverge, and the title has to be escaped."""
    axes = {"model.depth": (4, 8, 16), MULTIPLIER: (0.5, 1.0, 2.0), X: RATES[2::2], "seed": range(2)}
    return sweep_of(_loss, axes, title="<script>alert('&')</script>")


@pytest.fixture(scope="session")
def full_report(full_sweep, tmp_path_factory):
    """The report of `full_sweep`."""
    path = tmp_path_factory.mktemp("full")
    return make_report([write(path / "sweep", full_sweep)], path / "out")
