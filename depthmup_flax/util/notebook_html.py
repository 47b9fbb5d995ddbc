"""HTML for a notebook's cell. It has the notebook's own colors and fonts, light or dark, and loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape


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


def image(png: bytes, description: str) -> str:
    """A picture, as wide as the cell at most."""
    address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<img alt="{escape(description)}" src="{address}" style="max-width: 100%">\n'
