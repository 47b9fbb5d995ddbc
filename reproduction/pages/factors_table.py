"""Writes the tables of reproduction/pages/factors.md: python -m reproduction.pages.factors_table. No JAX."""

from __future__ import annotations

import pathlib

from reproduction.factors import table
from reproduction.pages.generated_parts import with_part

HERE = pathlib.Path(__file__).parent
PAGE, RECORDS = HERE / "factors.md", HERE.parent / "factors" / "records"


def renewed(page: str) -> str:
    """The page with what the records give."""
    for varied in ("decay", "rate"):
        rows = [table.HEADER, ("---",) * len(table.HEADER), *table.rows(RECORDS, varied)]
        start, end = f"<!-- {varied}: python -m reproduction.pages.factors_table -->", f"<!-- end of {varied} -->"
        lines = [f"| {' | '.join(row)} |" for row in rows]
        decisions = [f"* {sentence}" for sentence in table.decisions(RECORDS, varied)]
        page = with_part(page, start, end, "\n".join([*lines, "", *decisions]))
    return page


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
