"""Reports for all tests of what is in them: one with a figure, and others whose figure is not drawn."""

import math

import pytest
from planted_sweeps import MULTIPLIER, RATES, X, parabola, sweep_of, write

from depthmup_flax.report import figures, make_report, style


def _loss(point):
    rate, multiplier = math.log2(point[X]), math.log2(point[MULTIPLIER])
    return None if rate > -5 else parabola(point, noise=0.1) + 0.05 * (multiplier + rate + 8) ** 2


@pytest.fixture(scope="session")
def full_report(tmp_path_factory):
    """Two hyperparameters over three depths with two seeds; high rates diverge, and the title has to be escaped."""
    axes = {"model.depth": (4, 8, 16), MULTIPLIER: (0.5, 1.0, 2.0), X: RATES[2::2], "seed": range(2)}
    path = tmp_path_factory.mktemp("full")
    return make_report([write(path / "sweep", sweep_of(_loss, axes, title="<script>alert('&')</script>"))])


@pytest.fixture
def undrawn(monkeypatch):
    """Figures have their names and files, and nothing is drawn: for tests of everything else in a report."""
    monkeypatch.setattr(figures, "draw_transfer", lambda analysis: None)
    monkeypatch.setattr(style, "pictures", lambda _, name: dict.fromkeys((f"{name}.png", f"{name}.svg"), b"empty"))
