"""The page: one HTML file that opens from disk, without a network."""

from __future__ import annotations

import base64
import html
import pathlib
from collections.abc import Sequence

from depthmup_flax.report.loss_surfaces import number
from depthmup_flax.report.tables import explanation, header, slope_sentences, table_rows
from depthmup_flax.report.transfer import Study
from depthmup_flax.types import Json

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; color: #222; }
img { max-width: 100%; } figure { margin: 2em 0; } figcaption { color: #555; max-width: 60em; }
table { border-collapse: collapse; margin: 1em 0; } th, td { padding: .2em .8em; border-bottom: 1px solid #ddd; }
td, th { text-align: right; } td:last-child, th:last-child, .grid td { text-align: left; }
.notes { background: #fff6e0; }
.notes li { padding: .2em; } .scroll { overflow-x: auto; }
"""
_CAPTIONS = {
    "transfer": "Loss against {x}, a line per size, darker for larger. Stars mark optima, the dashed line the base's. "
    "The {x} transfers if the stars lie on the dashed line and larger networks have a lower loss.",
    "optima": "The best {x} of each size. A flat line means transfer; the slope is the exponent of size.",
    "curves": "Every size trained with the base's best {x}. With transfer, the curves coincide early in training "
    "and larger networks end lower.",
    "over_time": "The best {x} if training had stopped earlier. A flat line means that it is settled early.",
    "heatmap": "Darker is higher. Inside the red line the loss is close to the lowest, so one hyperparameter can be "
    "traded for the other along it; its slope is the rate of exchange.",
    "parameters": "The lowest loss of each size against its parameter count. Steeper lines gain more per parameter.",
}


def render(data: Json, figures: Sequence[tuple[str, pathlib.Path, Study]], study: Study) -> str:
    """The page of the `as_data` of a study, with the name, PNG and study of each figure."""
    title, how_to_read = html.escape(data["title"]), html.escape(explanation(study))
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in data["notes"])
    pictures = "".join(_picture(*figure) for figure in figures)
    tables = "".join(_table(data, variant, study) for variant in data["variants"])
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n{_facts(data)}\n"
        + (f'<h2>Warnings</h2>\n<ul class="notes">{notes}</ul>\n' if notes else "")
        + f"<h2>Figures</h2>\n{pictures}<h2>Tables</h2>\n<p>{how_to_read}</p>\n{tables}</body></html>\n"
    )


def _facts(data: Json) -> str:
    """The axes of the sweep, devices and versions."""
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
    kind = "transfer" if name.startswith("transfer") else name
    caption = html.escape(_CAPTIONS[kind].format(x=study.scale.name))
    return (
        f'<figure id="{html.escape(name)}"><img alt="{html.escape(name)}" src="data:image/png;base64,{content}">'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _table(data: Json, variant: Json, study: Study) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"

    body = "".join(
        line((*cells, ", ".join(f"{n} at {x}" for x, n in row["diverged"].items())), "td")
        for cells, row in zip(table_rows(variant), variant["rows"], strict=True)
    )
    head = line((*header(data), "diverged runs"), "th")
    slopes = "".join(f"<p>{html.escape(sentence)}</p>\n" for sentence in slope_sentences(variant, study.scale.name))
    name = f"<h3>{html.escape(variant['name'])}</h3>\n" if variant["name"] else ""
    return f'{name}<div class="scroll"><table>{head}{body}</table></div>\n{slopes}'
