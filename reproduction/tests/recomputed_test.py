"""Printed numbers agree with other code on the same records."""

import pytest

from reproduction import recomputed
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
