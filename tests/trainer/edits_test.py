"""What a second attempt makes of edits of code, data and settings: a table, see `tests/helpers/edits.py`."""

import edits
import pytest


@pytest.mark.slow
def test_changes_are_refused_but_for_those_that_the_docs_name_and_harmless_edits_go_on(tmp_path):
    found = edits.outcomes(tmp_path)
    assert {name for name in edits.CHANGES if found[name]} == edits.SILENT
    assert [name for name in edits.HARMLESS if not found[name]] == []
