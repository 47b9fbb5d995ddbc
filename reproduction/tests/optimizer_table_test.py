"""The tables of optimizers against the installed optax: all transformations, and the exponents as they are measured."""

import math
import pathlib
import re

import optax
import pytest

import depthmup_flax as dm
from reproduction.pages import optimizer_table
from reproduction.pages.optimizer_slopes import ETA, RULE, around, slopes

DOCUMENT = optimizer_table.in_document()
GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "optimizers.md"
DOCUMENTED = (0, 2, 8)  # the optax of which the document lists everything
RIGHT = 0.15  # exponents that the measurement does not tell from 0
ROWS = {(title, cells[0]): cells for title, rows in DOCUMENT.items() for cells in rows}
NUMBER = re.compile(r"[+-]\d")
COMMON = {"scale_by_adam", "clip_by_global_norm"}
TITLES = {name: title for title, names in optimizer_table.tables().items() for name in names}


def key(name):
    return TITLES[name], f"`{name if TITLES[name] == 'Wrappers' else optimizer_table.code(name)}`"


def test_every_transformation_of_optax_stands_in_the_document():
    """It fails for a new one: add it to `NAMES`, then run python -m reproduction.pages.optimizer_table."""
    here = {key(name) for name in TITLES}
    is_older = tuple(map(int, optax.__version__.split(".")[:3])) < DOCUMENTED
    assert here < ROWS.keys() if is_older else here == ROWS.keys()
    assert not set(TITLES) & optimizer_table.READ


def test_a_new_transformation_of_optax_is_noticed(monkeypatch):
    monkeypatch.setattr(optax, "scale_by_something_new", optax.scale_by_sign, raising=False)
    with pytest.raises(KeyError, match="scale_by_something_new"):
        optimizer_table.tables()


def test_the_document_says_what_the_library_does(monkeypatch):
    measured = {axis: {"all": 0.0, "stem": 0.0} for axis in ("width", "depth")}
    monkeypatch.setattr(optimizer_table, "inside", lambda name: measured)
    monkeypatch.setattr(optimizer_table, "outside", lambda name: measured)
    words = lambda cells: ["number" if NUMBER.match(cell) else cell for cell in cells]
    for name, title in TITLES.items():
        assert words(optimizer_table.row(name, title)) == words(ROWS[key(name)]), name


def numbers(cells):
    return [float(cell.split(" ")[0]) for cell in cells if NUMBER.match(cell)]


@pytest.mark.parametrize(
    "name",
    [
        name if name in COMMON else pytest.param(name, marks=pytest.mark.slow)
        for name in TITLES
        if numbers(ROWS.get(key(name), ()))
    ],
)
def test_exponents_are_those_of_the_document(name):
    measured, printed = numbers(optimizer_table.row(name, TITLES[name])), numbers(ROWS[key(name)])
    assert measured == pytest.approx(printed, abs=0.05)


def test_what_is_called_right_has_exponents_of_0_and_what_is_refused_has_not():
    slow_growth = {"`optax.scale_by_sm3()`"}  # a logarithm
    for (title, name), cells in ROWS.items():
        found = [abs(number) for number in numbers(cells)]
        if title in ("Directions", "Wrappers"):
            assert all(number < RIGHT for number in found), name
        elif found and name not in slow_growth:
            assert max(found) > RIGHT, name


@pytest.mark.slow
def test_exponents_are_those_of_theory():
    """Without the rule, and where a norm over a matrix of n x n entries of order one is about n."""
    plain = slopes(lambda info: optax.adam(ETA))["width"]
    assert plain["blocks"] == pytest.approx(1.0, abs=RIGHT)  # n entries of a row move together
    assert plain["readout"] == pytest.approx(0.0, abs=RIGHT)
    novograd = slopes(around(optax.scale_by_novograd()))
    assert novograd["width"]["blocks"] == pytest.approx(-1.0, abs=RIGHT)
    assert novograd["width"]["stem bias"] == pytest.approx(-0.5, abs=RIGHT)
    assert novograd["depth"]["blocks"] == pytest.approx(-0.5, abs=RIGHT)  # the norm of a stack of r matrices
    trust = slopes(around(optax.scale_by_trust_ratio()))
    assert trust["width"]["blocks"] == pytest.approx(-0.5, abs=RIGHT)  # weights of 1/sqrt(n) over updates of order one


@pytest.mark.slow
def test_clipping_raw_gradients_by_their_global_norm_does_not_transfer():
    sgd = lambda info: dm.depthmup(optax.identity(), info, RULE, ETA)
    measured = slopes(lambda info: optax.chain(optax.clip_by_global_norm(0.1), sgd(info)))["width"]["all"]
    printed = re.search(r"the exponent ([+-]\d\.\d\d) over width", GUIDE.read_text())
    assert measured == pytest.approx(float(printed[1]), abs=0.03)
    assert math.isclose(slopes(sgd)["width"]["all"], 0, abs_tol=RIGHT)
