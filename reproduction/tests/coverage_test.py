"""reproduction/pages/coverage.toml: every item of the papers stands in it once, and what it names exists."""

import collections
import re

import pytest

from reproduction.claims.statements import CLAIMS
from reproduction.pages import coverage_table as coverage

ROWS = [(paper, key, *row) for paper, rows in coverage.CONTENT.items() for key, row in rows.items()]
CLAIMED = {claim for claims in CLAIMS.values() for claim in claims}


def headings(page):
    return {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ")).lower().replace(" ", "-") for line in page.read_text().split("\n")
    }


def exists(where):
    kind, _, name = where.partition("/")
    if kind == "claims":
        return name in {claim.id for claim in CLAIMED}
    paths = coverage.files(where)
    _, named, test = where.partition("::")
    _, anchored, heading = where.partition("#")
    return (
        all(path.exists() for path in paths)
        and (not named or f"\ndef {test}(" in paths[0].read_text())
        and (not anchored or heading in headings(paths[0]))
    )


def test_the_page_is_what_the_file_gives():
    page = coverage.PAGE.read_text()
    assert coverage.renewed(page) == page


@pytest.mark.parametrize("paper", coverage.CONTENT)
def test_every_numbered_item_of_a_paper_stands_in_one_row(paper):
    listed, numbered = (
        collections.Counter(item for key in keys for item in coverage.items(key))
        for keys in (coverage.CONTENT[paper], coverage.NUMBERED[paper])
    )
    assert listed == numbered
    assert set(numbered.values()) == {1}


def test_what_a_row_names_exists():
    assert [where for _, _, _, _, entries, _ in ROWS for where in entries if not exists(where)] == []


def test_a_row_that_is_not_verified_has_its_reason_and_a_tested_one_says_where():
    for paper, key, state, says, where, reason in ROWS:
        assert state in coverage.STATES, (paper, key)
        assert says, (paper, key)
        assert bool(where) == (state not in ("absent", "no result")), (paper, key)
        assert reason or state in ("verified", "no result"), (paper, key)


def test_every_claim_is_in_the_row_of_its_figure():
    rows = {(paper, item): where for paper, key, _, _, where, _ in ROWS for item in coverage.items(key)}
    for claim in CLAIMED:
        paper, _, source = claim.source.partition(" ")
        for item in coverage.items(source):
            assert f"claims/{claim.id}" in rows[paper, item], claim
