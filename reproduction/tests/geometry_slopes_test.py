"""The tables of exponents by geometry in reproduction/pages/optimizers.md, and some of their rows measured again."""

import itertools
import re

import pytest

from reproduction.pages import geometry_slopes


def printed(title, models):
    """Exponents and intervals, right and wrong, by optimizer, axis and model."""
    document = geometry_slopes.DOCUMENT.read_text()
    rows = re.search(rf"<!-- {title} -->\n(.*?)<!-- end -->", document, re.DOTALL)[1].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {
        (optimizer, axis, model): [tuple(map(float, cell.split("±"))) for cell in numbers[2 * i : 2 * i + 2]]
        for optimizer, axis, *numbers in cells
        for i, model in enumerate(models)
    }


PRINTED, MANY_STEPS = (printed(title, models) for title, (models, _) in geometry_slopes.TABLES.items())


def test_the_document_has_every_optimizer_and_axis():
    expected = set(itertools.product(geometry_slopes.OPTIMIZERS, geometry_slopes.AXES))
    assert {(optimizer, axis) for optimizer, axis, _ in MANY_STEPS} == expected
    few_steps = {row for row in expected if row[0] not in geometry_slopes.FEW_STEPS_DO_NOT_SHOW}
    assert {(optimizer, axis) for optimizer, axis, _ in PRINTED} == few_steps


# Networks so small that those of Adam and Muon are not resolved either; the document has the numbers.
UNRESOLVED = [("Shampoo (two_sided)", "both", "SimpleResNet")]
# The wrong powers of width and depth cancel.
UNRESOLVED += [("MuonH (orthogonal)", "both", model) for model in geometry_slopes.MODELS]


def test_features_move_alike_at_every_size_with_the_factor_and_not_without():
    """Within 0.1 with the rule's factor, up to the interval; outside without it, beyond the interval."""
    for case, ((right, spread), (wrong, wrong_spread)) in PRINTED.items():
        if case not in UNRESOLVED:
            assert abs(right) - spread <= 0.1, case
            assert abs(wrong) - wrong_spread > 0.1, case


def test_after_many_steps_features_move_no_more_in_larger_networks_and_not_less_than_with_sgd():
    """Noise averages out in wide networks with every optimizer; SGD, whose factor is exact, shows by how much."""
    for (optimizer, axis, model), ((right, spread), _) in MANY_STEPS.items():
        assert right - spread <= 0.1, (optimizer, axis)
        (of_sgd, _), _ = MANY_STEPS["SGD (linear)", axis, model]
        assert right + spread >= of_sgd - 0.15, (optimizer, axis)


def test_shampoos_factor_lets_features_grow_under_soap():
    _, (wrong, spread) = MANY_STEPS["SOAP (rotated)", "width", "ResMLP"]
    assert wrong - spread > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["Muon (orthogonal)", "Shampoo (two_sided)", "LAMB (norm_matched)"])
@pytest.mark.parametrize("axis", ["width", "depth"])
def test_exponents_are_those_of_the_document(optimizer, axis):
    measured = geometry_slopes.exponents("ResMLP", optimizer, axis)
    for (found, spread), (printed, _) in zip(measured, PRINTED[optimizer, axis, "ResMLP"], strict=True):
        assert found == pytest.approx(printed, abs=max(0.03, spread))


@pytest.mark.slow
def test_exponents_of_soap_after_many_steps_are_those_of_the_document():
    measured = geometry_slopes.exponents("ResMLP", "SOAP (rotated)", "width", geometry_slopes.MANY)
    for (found, spread), (printed, _) in zip(measured, MANY_STEPS["SOAP (rotated)", "width", "ResMLP"], strict=True):
        assert found == pytest.approx(printed, abs=max(0.03, spread))
