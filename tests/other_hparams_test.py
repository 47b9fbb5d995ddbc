"""docs/beyond/other_hparams.md: its tables against the committed records."""

import importlib
import math
import sys

import numpy as np
import pytest
from processes import ROOT

sys.path.append(str(ROOT / "docs" / "beyond"))
other_hparams = importlib.import_module("other_hparams")


def test_the_tables_are_what_the_records_give():
    page = other_hparams.PAGE.read_text()
    assert other_hparams.renewed(page, other_hparams.measured()) == page


def test_a_parabola_costs_its_height_and_passes_where_it_is_below_the_tolerance():
    x = np.linspace(-4, 4, 9)
    lowest, noise = 1.3, np.array([-0.1, 0.0, 0.1])  # the same in every point of a seed: it costs nothing
    losses = lowest + 0.01 * (x - 0.5) ** 2 + noise[:, None]
    curve = other_hparams.Curve(x, losses, other_hparams.find_optimum(x, losses))
    assert curve.optimum.at.value == pytest.approx(0.5)
    assert curve.cost(0.0).value == pytest.approx(0.01 * 0.5**2)
    learned = math.log(10) - losses.mean(0).min()
    assert curve.tolerance == pytest.approx(0.01 * learned)
    assert curve.passing == pytest.approx(2 * learned**0.5 / 8, abs=0.02)
