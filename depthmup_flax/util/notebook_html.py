"""HTML for a notebook's cell. It has the notebook's own colors and fonts, light or dark, and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def heading(text: str) -> str:
    """A line in bold."""
    return f"<p><b>{escape(text)}</b></p>\n"


def paragraphs(texts: Iterable[str]) -> str:
    """A paragraph for each text."""
    return "".join(f"<p>{escape(text)}</p>\n" for text in texts)
