"""Columns of text for a terminal."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], aligns: str) -> list[str]:
    """A line per row; ``aligns`` has ``<`` (left) or ``>`` (right) for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{c:{a}{w}}" for c, a, w in zip(row, aligns, widths, strict=True)).rstrip() for row in rows]
