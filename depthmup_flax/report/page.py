"""A report as one page, and as the HTML of a notebook's cell."""

from __future__ import annotations

import base64
import functools
import pathlib
from collections.abc import Mapping, Sequence

import jinja2

from depthmup_flax.report import tables
from depthmup_flax.report.tables import Section
from depthmup_flax.report.transfer import Analysis
from depthmup_flax.util.types import Json


def pages(data: Json, analysis: Analysis, figures: Sequence[tuple[str, Mapping[str, bytes]]]) -> tuple[str, str]:
    """The page of an analysis and its `tables.as_data`, and what a notebook shows of it, in the notebook's own style.

    ``figures`` are captions and files.
    """
    parts = tables.sections(data, analysis)
    svg, png = ([_picture(*figure, kind) for figure in figures] for kind in ("svg", "png"))
    shown, cell = [Section(pictures=svg), *parts], [Section(pictures=png), *parts[:-2]]
    render = lambda sections, whole: _template().render(title=data["headline"], sections=sections, whole=whole)
    return render(shown, True).strip() + "\n", render(cell, False).strip() + "\n"


@functools.cache
def _template() -> jinja2.Template:
    text = (pathlib.Path(__file__).parent / "page.html").read_text("utf-8")
    return jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)


def _picture(caption: str, files: Mapping[str, bytes], kind: str) -> tuple[str, str, str]:
    """One of a figure's files for a `Section`."""
    content = next(content for name, content in files.items() if name.endswith(f".{kind}"))
    return caption, {"svg": "svg+xml"}.get(kind, kind), base64.b64encode(content).decode()
