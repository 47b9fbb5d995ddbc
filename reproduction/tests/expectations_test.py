"""What README says to expect has its cells in a table, and the numbers of its records."""

import pytest
from processes import ROOT

from reproduction.pages import expectations

README = (ROOT / "README.md").read_text()


def test_every_sentence_has_its_cells_in_the_table():
    assert expectations.PAGE.read_text() == expectations.written(expectations.sentences(README))


@pytest.mark.parametrize(("right", "wrong"), [("0.0035", "0.0053"), ("0.072", "0.027"), ("1.8 %", "1.3 %")])
def test_a_sentence_with_another_number_than_its_records_give_is_refused(right, wrong):
    assert right in README
    with pytest.raises(ValueError, match="which its records give"):
        expectations.written(expectations.sentences(README.replace(right, wrong)))


def test_a_sentence_without_cells_is_refused():
    with pytest.raises(ValueError, match="name its cells"):
        expectations.row_of("It is always right.")
