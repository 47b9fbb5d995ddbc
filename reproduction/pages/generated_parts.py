"""Parts of the pages that scripts write, between two HTML comments."""

from __future__ import annotations


def with_part(page: str, start: str, end: str, text: str) -> str:
    """The page with other text between its comments ``start`` and ``end``; ValueError if one is missing."""
    before, after = page.index(start) + len(start), page.index(end)
    return f"{page[:before]}\n\n{text}\n\n{page[after:]}"
