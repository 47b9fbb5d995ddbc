"""A report as one page, and as the HTML of a notebook's cell."""

from __future__ import annotations

import base64
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from depthmup_flax.report import presets, tables
from depthmup_flax.report.loss_surfaces import number
from depthmup_flax.report.transfer import Analysis
from depthmup_flax.util.table import Table
from depthmup_flax.util.types import Json


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page: a heading, sentences, a list, a table, sentences below it, and figures."""

    heading: str = ""
    texts: Sequence[str] = ()
    listed: Sequence[str] = ()
    table: Table | None = None
    below: Sequence[str] = ()
    pictures: Sequence[tuple[str, str, str]] = ()  # caption, type, and content in base 64


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


def title(data: Json) -> str:
    """The claim of the headline, without its reason."""
    return data["headline"].partition(": ")[0]


def sections(data: Json, analysis: Analysis, figures: Sequence[tuple[str, Mapping[str, bytes]]]) -> list[Section]:
    """The page of an analysis and its `tables.as_data`; ``figures`` are captions and files, the main one first."""
    facts = {
        "sweep": f"{data['title']} ({data['figure']}, {data['scale']}); {tables.counts(data)}",
        **data["settings"],
        **{axis: ", ".join(map(number, values)) for axis, values in data["axes"].items()},
        "devices": "; ".join(data["devices"]),
        "time": tables.duration(data["hours"]),
        "versions": ", ".join(data["versions"]),
        "commits": ", ".join(data["commits"]),
    }
    rows = [(name, text) for name, text in facts.items() if text]
    more = [picture(*figure) for figure in figures[1:]]
    return [
        *_results(data, analysis, [picture(*figure) for figure in figures[:1]]),
        Section("More figures", pictures=more) if more else Section(),
        Section("How to read it", [tables.explanation(analysis), tables.tolerance_sentence(data, analysis)]),
        Section("How it was measured", table=Table((), rows, "<<")),
    ]


def extract(data: Json, analysis: Analysis, figures: Sequence[tuple[str, Mapping[str, bytes]]]) -> list[Section]:
    """What a notebook shows of it."""
    return _results(data, analysis, [picture(*figure, kind="png") for figure in figures[:1]])


def _results(data: Json, analysis: Analysis, pictures: Sequence[tuple[str, str, str]]) -> list[Section]:
    """Verdicts, notes, the main figure and tables."""
    _, _, reason = data["headline"].partition(": ")
    parts = [Section(texts=[reason] if reason else [], listed=tables.other_verdicts(data), pictures=pictures)]
    if data["notes"]:
        parts.append(Section("Notes", listed=data["notes"]))
    if data["comparison"]:
        parts.append(Section("Comparison", presets.comparison_lines(data["comparison"])))
    for variant in data["variants"]:
        slopes = tables.slope_sentences(variant, analysis.scale.name)
        parts.append(Section(variant["name"] or "Results", table=tables.table_of(data, variant), below=slopes))
    return parts
