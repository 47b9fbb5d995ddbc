"""The table of exponents by geometry in docs/optimizers.md, and some of its rows measured again."""

import itertools
import re

import geometry_slopes
import pytest

ROWS = re.search(r"<!-- Geometries -->\n(.*?)<!-- end -->", geometry_slopes.DOCUMENT.read_text(), re.DOTALL)[1]
CELLS = [line.strip("|").split("|") for line in ROWS.splitlines()[2:]]
PRINTED = {
    (cells[0].strip(), cells[1].strip(), model): [
        tuple(map(float, cell.split("±"))) for cell in cells[2 + 2 * i : 4 + 2 * i]
    ]
    for cells in CELLS
    for i, model in enumerate(geometry_slopes.MODELS)
}


def test_the_document_has_every_optimizer_and_axis():
    expected = set(itertools.product(geometry_slopes.OPTIMIZERS, geometry_slopes.AXES))
    assert {(optimizer, axis) for optimizer, axis, _ in PRINTED} == expected


# Networks so small that those of Adam and Muon are not resolved either; the document has the numbers.
UNRESOLVED = [(f"{name} (two_sided)", "both", "SimpleResNet") for name in ("Shampoo", "SOAP")]


def test_features_move_alike_at_every_size_with_the_factor_and_not_without():
    """Within 0.1 with the rule's factor, up to the interval; outside without it, beyond the interval."""
    for case, ((right, spread), (wrong, wrong_spread)) in PRINTED.items():
        if case not in UNRESOLVED:
            assert abs(right) - spread <= 0.1, case
            assert abs(wrong) - wrong_spread > 0.1, case


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["Muon (orthogonal)", "SOAP (two_sided)", "LAMB (norm_matched)"])
@pytest.mark.parametrize("axis", ["width", "depth"])
def test_exponents_are_those_of_the_document(optimizer, axis):
    measured = geometry_slopes.exponents("ResMLP", optimizer, axis)
    for (found, spread), (printed, _) in zip(measured, PRINTED[optimizer, axis, "ResMLP"], strict=True):
        assert found == pytest.approx(printed, abs=max(0.03, spread))
