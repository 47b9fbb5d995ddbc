"""HTML for a notebook's cell. It has the notebook's own colors and fonts, light or dark, and loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

_SIDES = {"<": "left", ">": "right"}


def heading(text: str) -> str:
    """A line in bold."""
    return f"<p><b>{escape(text)}</b></p>\n"


def paragraphs(texts: Iterable[str]) -> str:
    """A paragraph for each text."""
    return "".join(f"<p>{escape(text)}</p>\n" for text in texts)


def items(texts: Iterable[str]) -> str:
    """A list; empty for no texts."""
    listed = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{listed}</ul>\n" if listed else ""


def code(text: str) -> str:
    """A program, with its line breaks."""
    return f"<pre>{escape(text)}</pre>\n"


def table(rows: Sequence[Sequence[str]], aligns: str) -> str:
    """A table whose first row is its head; ``aligns`` has ``<`` (left) or ``>`` (right) for each column."""

    def line(row: Sequence[str], tag: str) -> str:
        sides = (_SIDES[align] for align in aligns)
        cells = zip(row, sides, strict=True)
        return "".join(f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for cell, side in cells)

    head, *body = rows
    lines = "".join(f"<tr>{line(row, 'td')}</tr>\n" for row in body)
    return f"<table><thead><tr>{line(head, 'th')}</tr></thead>\n<tbody>{lines}</tbody></table>\n"


def image(png: bytes, description: str) -> str:
    """A picture, as wide as the cell at most."""
    address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<img alt="{escape(description)}" src="{address}" style="max-width: 100%">\n'
