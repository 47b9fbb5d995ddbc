"""The page's table of what is exact around an optimizer of parameters that carry factors."""

import pathlib
import re

import numpy as np
import pytest

from reproduction.pages.carried_wrappers import ROWS, trained

PAGE = (pathlib.Path(__file__).parents[1] / "pages" / "optimizers.md").read_text()
PRINTED = {
    match[1]: float(match[2]) for match in re.finditer(r"^\| (.+?)(?:, decay before.*?)? \| ([\d.]+) \|", PAGE, re.M)
}
FAST = "`contrib.sam(dm.adamw(...), dm.sgd(rho, info, rule))`"


def difference(name):
    optimizer, penalty = ROWS[name]
    return np.max(np.abs(trained(True, optimizer, penalty) - trained(False, optimizer, penalty)))


@pytest.mark.parametrize("name", [FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in ROWS if name != FAST)])
def test_differences_of_the_loss_are_those_of_the_page(name):
    printed = PRINTED.get(name, 0.0)  # the optimizer alone has no row
    assert difference(name) == pytest.approx(printed, rel=0.5, abs=1e-4)


def test_the_page_has_every_row():
    assert {name for name in ROWS if not name.startswith("none")} <= PRINTED.keys()
