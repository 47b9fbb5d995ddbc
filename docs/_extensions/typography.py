"""How pages look where Markdown and docstrings cannot say it: powers, tables on phones, one font size in figures."""

from __future__ import annotations

import pathlib
import re
from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_POWER = re.compile(r"(?<=[\w)])\^(\([^()]*\)|[-+]?(?:\w|\.(?=\w))+(?:/\d+)?)")
_VERBATIM = (nodes.literal, nodes.literal_block, nodes.raw, nodes.math, nodes.math_block, nodes.image)
_PX_PER_INCH = 100  # text of 10 points has 14 pixels, as the pages' own
LABELLED = 3  # columns from which a phone shows the rows of a table below each other


def with_powers(text: str) -> list[nodes.Text | nodes.superscript]:
    """``r^-1/2`` as r with a superscript; empty for a text without powers."""
    parts: list[nodes.Text | nodes.superscript] = []
    for k, piece in enumerate(_POWER.split(text)):
        if k % 2:
            exponent = re.sub(r"(?<!\w)-", "\N{MINUS SIGN}", piece.strip("()"))
            parts.append(nodes.superscript("", exponent))
        elif piece:
            parts.append(nodes.Text(piece))
    return parts if len(parts) > 1 else []


def label_cells(table: nodes.table) -> None:
    """Repeats the column's name in each cell after the first, which the stylesheet shows on phones alone."""
    heads = [entry.astext() for head in table.findall(nodes.thead) for entry in head.findall(nodes.entry)]
    table["classes"].append("stacked" if len(heads) >= LABELLED else "narrow")
    if len(heads) < LABELLED:
        return
    for row in (row for body in table.findall(nodes.tbody) for row in body.findall(nodes.row)):
        for name, entry in list(zip(heads, row.findall(nodes.entry), strict=False))[1:]:
            if entry.astext():
                entry.insert(0, nodes.paragraph("", name, classes=["column"]))


def size_image(image: nodes.image, directory: pathlib.Path) -> None:
    """Gives a figure its size in inches, so that equal font sizes look equal; wide ones shrink to the page."""
    from PIL import Image

    path = directory / image["uri"]
    if path.suffix == ".png" and path.is_file():
        with Image.open(path) as opened:
            dpi = opened.info.get("dpi")
            if dpi:
                image["width"] = f"{opened.width / dpi[0] * _PX_PER_INCH:.0f}px"


def _on_doctree(app: Sphinx, doctree: nodes.document) -> None:
    for text in list(doctree.findall(nodes.Text)):
        ancestor = text.parent
        while ancestor is not None and not isinstance(ancestor, _VERBATIM):
            ancestor = ancestor.parent
        if ancestor is None and (parts := with_powers(text.astext())):
            text.parent.replace(text, parts)
    for table in doctree.findall(nodes.table):
        label_cells(table)
    for image in doctree.findall(nodes.image):
        size_image(image, pathlib.Path(app.srcdir))


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.connect("doctree-read", _on_doctree)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
