"""Printed numbers agree with other code on the same records."""

import re

import pytest

from reproduction import recomputed
from reproduction.papers import decisions
from reproduction.rules.version2 import runs, table


@pytest.mark.parametrize(("records", "words"), recomputed.CLAIMS)
def test_a_claim_of_the_page_has_the_number_that_other_code_finds(records, words):
    found, _, _ = recomputed.claim(records, recomputed.CLAIMS[records, words], draws=0)
    assert found == pytest.approx(recomputed.printed(records, words), rel=0.15)


def test_the_rule_benchmark_scores_as_its_registration_says():
    scored = recomputed.benchmark()
    assert len({cell[:2] for cell in scored}) >= 16
    cells = table.cells(runs.RECORDS)
    assert {cell: cells[cell].regret for cell in scored} == pytest.approx(scored, abs=1e-6)


def test_the_runs_of_the_papers_size_have_the_best_rates_and_losses_that_other_code_finds():
    lines = [line.split(" | ") for line in decisions.text().splitlines() if line.startswith("| [fig10")]
    printed = {
        (re.search(r"\[(.*?)\]", cells[0])[1], cells[1], int(cells[2])): (int(cells[3]), float(cells[4].split(",")[0]))
        for cells in lines
    }
    losses = {key: float(cells[-1].rstrip(" |")) for key, cells in zip(printed, lines, strict=True)}
    found = recomputed.papers_size()
    assert printed.keys() == found.keys()
    for key, (seeds, best, loss) in found.items():
        assert printed[key] == (seeds, pytest.approx(best, abs=0.15)), key
        assert losses[key] == pytest.approx(loss, abs=0.001), key


def test_the_power_of_the_width_is_that_of_the_report():
    report = (recomputed.HERE / "records" / "linear_limit-paper" / "report.txt").read_text()
    powers = [
        float(line.split()[line.split().index("+-") - 1])
        for line in report.splitlines()
        if "over width " in line and "+-" in line
    ]
    assert powers == pytest.approx(list(recomputed.widths_power().values()), abs=0.02)


def test_slopes_of_features_distances_at_the_papers_size_are_those_of_the_report():
    report = (recomputed.HERE / "records" / "diversity-paper" / "report.txt").read_text()
    after = [line for line in report.partition("slope minus")[0].splitlines() if " 1000 " in line]
    printed = [float(number) for line in after for number in re.findall(r"(0\.\d+) ±", line)]
    assert len(printed) == 6
    assert printed == pytest.approx(list(recomputed.diversity_slopes().values()), abs=0.001)
