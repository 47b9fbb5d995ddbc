"""Writes the tables of reproduction/pages/drift.md: python -m reproduction.pages.drift_table. No JAX."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from reproduction.drift import benchmark, over_depth_table, table
from reproduction.drift.cells import TEN_CELLS
from reproduction.pages.generated_parts import with_part

HERE = pathlib.Path(__file__).parent
PAGE, RECORDS = HERE / "drift.md", HERE.parent / "drift" / "records"
CELLS_PART = "<!-- cells: python -m reproduction.pages.drift_table -->", "<!-- end of cells -->"
DEPTH_PART = "<!-- depth: python -m reproduction.pages.drift_table -->", "<!-- end of depth -->"
BENCHMARK_PART = "<!-- benchmark: python -m reproduction.pages.drift_table -->", "<!-- end of benchmark -->"
TEN_PART = "<!-- ten: python -m reproduction.pages.drift_table -->", "<!-- end of ten -->"


def renewed(page: str) -> str:
    """The page with what the records give."""
    found, ten = table.results(RECORDS), table.results(RECORDS, TEN_CELLS)
    cells = _markdown(table.HEADER, list(map(table.row, found, found.values())))
    decided = "\n".join(f"* {sentence}" for sentence in table.decisions(found))
    of_ten = _markdown(table.TEN_HEADER, list(map(table.ten_row, ten, ten.values())))
    page = with_part(page, *CELLS_PART, f"{cells}\n\n{decided}\n\n{table.not_run(RECORDS)}")
    page = with_part(page, *TEN_PART, of_ten)
    depth = _markdown(over_depth_table.HEADER, over_depth_table.rows(RECORDS))
    roles = _markdown(over_depth_table.ROLES_HEADER, over_depth_table.role_rows(RECORDS))
    page = with_part(page, *DEPTH_PART, f"{depth}\n\n{roles}")
    return with_part(page, *BENCHMARK_PART, _markdown(benchmark.HEADER, benchmark.rows()))


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
