"""One table for a terminal and a notebook."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from html import escape
from typing import Any

_SIDES = {"<": "left", ">": "right"}


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows below named columns, as plain text or a notebook's HTML; a float has four digits, and ``None`` is empty."""

    columns: Sequence[str]  # none for a table without a head
    rows: Sequence[Sequence[Any]]
    aligns: str  # < (left) or > (right) for each column
    caption: str = ""  # a line above it
    ruled: bool = False  # lines are drawn around the rows of the text

    @property
    def lines(self) -> list[str]:
        """The lines of the text."""
        cells = [list(self.columns)] * bool(self.columns) + self._cells
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        placed = [[f"{c:{a}{w}}" for c, a, w in zip(row, self.aligns, widths, strict=True)] for row in cells]
        lines = ["  ".join(row).rstrip() for row in placed]
        if self.ruled:
            rule = "-" * max(map(len, lines))
            lines = [lines[0], rule, *lines[1:], rule]
        return [*([self.caption] if self.caption else []), *lines]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def html(self) -> str:
        """A table in the colors and fonts of what surrounds it."""
        head = f"<thead><tr>{self._line(self.columns, 'th')}</tr></thead>\n" if self.columns else ""
        caption = f"<caption>{escape(self.caption)}</caption>\n" if self.caption else ""
        body = "".join(f"<tr>{self._line(row, 'td')}</tr>\n" for row in self._cells)
        return f"<table>{caption}{head}<tbody>{body}</tbody></table>\n"

    def _repr_html_(self) -> str:
        return self.html()

    @property
    def _cells(self) -> list[list[str]]:
        return [[cell_text(cell) for cell in row] for row in self.rows]

    def _line(self, row: Sequence[str], tag: str) -> str:
        cells = zip(row, self.aligns, strict=True)
        return "".join(f'<{tag} style="text-align: {_SIDES[a]}">{escape(cell)}</{tag}>' for cell, a in cells)


def notebook_html(*parts: str | Table) -> str:
    """HTML of tables, and of texts with their line breaks, in the colors and fonts of a notebook."""
    text = lambda part: f'<p style="white-space: pre-wrap">{escape(part)}</p>\n'
    return "".join(part.html() if isinstance(part, Table) else text(part.strip("\n")) for part in parts)


def cell_text(value: Any) -> str:
    """A float with four digits, nothing for ``None``, other values as they are."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
