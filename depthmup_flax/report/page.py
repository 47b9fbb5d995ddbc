"""The page: one HTML file that opens from a disk, without a network."""

from __future__ import annotations

import base64
import html
import pathlib
from collections.abc import Sequence
from typing import Any

from depthmup_flax.report.analysis import Study
from depthmup_flax.report.loss_surfaces import number
from depthmup_flax.report.tables import explanation, header, slope_sentences, table_rows

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; color: #222; }
img { max-width: 100%; } figure { margin: 2em 0; } figcaption { color: #555; max-width: 60em; }
table { border-collapse: collapse; margin: 1em 0; } th, td { padding: .2em .8em; border-bottom: 1px solid #ddd; }
td, th { text-align: right; } td:last-child, th:last-child, .grid td { text-align: left; }
.notes { background: #fff6e0; }
.notes li { padding: .2em; } .scroll { overflow-x: auto; }
"""


def caption(name: str, study: Study) -> str:
    """How to read a figure, in a sentence."""
    x = study.scale.name
    if name.startswith("transfer"):
        return (
            f"Loss against {x}, a line per size, darker for larger; stars are optima. Transfer: the stars stand on "
            "the dashed line of the base, and larger networks are lower."
        )
    return {
        "optima": f"The best {x} of each size; flat is transfer, a slope says by how much it moves with size.",
        "curves": f"Every size trained with the base's best {x}; where it transfers, the lines fall together early "
        "and larger networks end lower.",
        "over_time": f"The best {x} that one would have found by stopping earlier; flat lines: it is decided early.",
        "heatmap": "Darker is higher. Inside the red line losses are nearly as good as the best, so along it one "
        "hyperparameter can be traded for the other; its slope says how.",
        "parameters": "The lowest loss of each size against its parameters; a steeper line gains more from them.",
    }[name]


def render(data: dict[str, Any], figures: Sequence[tuple[str, pathlib.Path, Study]], study: Study) -> str:
    """The page of a report: ``data`` of `as_data`, figures as (name, path of its PNG, what it shows)."""
    title = html.escape(data["title"])
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in data["notes"])
    pictures = "".join(_picture(*figure) for figure in figures)
    how_to_read = html.escape(explanation(study))
    tables = "".join(_table(data, variant, study) for variant in data["variants"])
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n{_facts(data)}\n"
        + (f'<h2>To be careful with</h2>\n<ul class="notes">{notes}</ul>\n' if notes else "")
        + f"<h2>Figures</h2>\n{pictures}<h2>Tables</h2>\n<p>{how_to_read}</p>\n{tables}</body></html>\n"
    )


def _facts(data: dict[str, Any]) -> str:
    """What was swept, and with what."""
    facts = [
        ("runs", f"{data['runs']}, {data['diverged']} of them diverged"),
        ("figure, scale", f"{data['figure']}, {data['scale']}"),
        *((axis, ", ".join(map(number, values))) for axis, values in data["axes"].items()),
        ("devices", "; ".join(data["devices"])),
        ("time", f"{data['hours']:.3g} hours"),
        ("versions", ", ".join(data["versions"])),
        ("commits", ", ".join(data["commits"])),
    ]
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in facts)
    return f'<table class="grid">{rows}</table>'


def _picture(name: str, path: pathlib.Path, study: Study) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    text = html.escape(caption(name, study))
    return (
        f'<figure id="{html.escape(name)}"><img alt="{html.escape(name)}" src="data:image/png;base64,{content}">'
        f"<figcaption>{text}</figcaption></figure>\n"
    )


def _table(data: dict[str, Any], variant: dict[str, Any], study: Study) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"

    heads = (*header(data), "diverged runs")
    body = ""
    for cells, row in zip(table_rows(variant), variant["rows"], strict=True):
        body += line((*cells, ", ".join(f"{n} at {x}" for x, n in row["diverged"].items())), "td")
    slopes = "".join(f"<p>{html.escape(said)}</p>\n" for said in slope_sentences(variant, study.scale.name))
    name = f"<h3>{html.escape(variant['name'])}</h3>\n" if variant["name"] else ""
    return f'{name}<div class="scroll"><table>{line(heads, "th")}{body}</table></div>\n{slopes}'
