"""A report as one page, and as the HTML of a notebook's cell."""

from __future__ import annotations

import base64
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from depthmup_flax.report import tables
from depthmup_flax.report.tables import Section
from depthmup_flax.report.transfer import Analysis
from depthmup_flax.util.types import Json


def rendered(title: str, sections: Sequence[Section], *, whole: bool = True) -> str:
    """The page; without ``whole``, the HTML of a notebook's cell, in the notebook's own style."""
    return _template().render(title=title, sections=sections, whole=whole).strip() + "\n"


@functools.cache
def _template() -> Any:
    import jinja2  # an optional dependency

    text = (pathlib.Path(__file__).parent / "page.html").read_text("utf-8")
    return jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)


def picture(caption: str, files: Mapping[str, bytes], kind: str = "svg") -> tuple[str, str, str]:
    """One of a figure's files for a `Section`."""
    content = next(content for name, content in files.items() if name.endswith(f".{kind}"))
    return caption, {"svg": "svg+xml"}.get(kind, kind), base64.b64encode(content).decode()


def pages(data: Json, analysis: Analysis, figures: Sequence[tuple[str, Mapping[str, bytes]]]) -> tuple[str, str]:
    """The page of an analysis and its `tables.as_data`, and what a notebook shows of it.

    ``figures`` are captions and files, the main one first.
    """
    parts, title = tables.sections(data, analysis), data["headline"]
    main, more = [picture(*figure) for figure in figures[:1]], [picture(*figure) for figure in figures[1:]]
    shown = [Section(pictures=main), *parts[:-2], Section("More figures", pictures=more), *parts[-2:]]
    cell = [Section(pictures=[picture(*figure, kind="png") for figure in figures[:1]]), *parts[:-2]]
    return rendered(title, shown), rendered(title, cell, whole=False)
