"""reproduction/pages/other_hparams.md: its tables against the committed records."""

import numpy as np
import pytest

from reproduction.pages import other_hparams


def test_the_tables_are_what_the_records_give():
    page = other_hparams.PAGE.read_text()
    assert other_hparams.renewed(page, other_hparams.measured()) == page


def test_a_parabola_costs_its_height():
    x, noise = np.linspace(-4, 4, 9), np.array([-0.1, 0.0, 0.1])  # the same in every point of a seed: it costs nothing
    losses = 1.3 + 0.01 * (x - 0.5) ** 2 + noise[:, None]
    curve = other_hparams.Curve(x, losses, other_hparams.find_optimum(x, losses))
    assert curve.optimum.at.value == pytest.approx(0.5)
    assert curve.cost(0.0).value == pytest.approx(0.01 * 0.5**2)
