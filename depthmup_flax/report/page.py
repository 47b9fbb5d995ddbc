"""The page: one HTML file that opens from disk, without a network."""

from __future__ import annotations

import base64
import hashlib
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from matplotlib.cm import ScalarMappable
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from depthmup_flax.records.table import TRAIN
from depthmup_flax.report import settings, tables
from depthmup_flax.report.inline_svg import inline_svg, plain, themed
from depthmup_flax.report.loss_surfaces import EVALUATED, number
from depthmup_flax.report.sheet import Band, Sheet
from depthmup_flax.report.transfer import Analysis
from depthmup_flax.util.types import Json

_HERE = pathlib.Path(__file__).parent
_FEW_VERDICTS = 4  # more are folded
_TYPES = {"png": "image/png", "svg": "image/svg+xml", "csv": "text/csv"}
_GLYPHS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚", "*": "★", "x": "✕"}


def render(
    data: Json,
    figures: Sequence[tuple[str, str, Sheet]],
    analysis: Analysis,
    files: Mapping[str, bytes],
    refresh_s: float | None = None,
) -> str:
    """The page of an analysis along x and its `as_data`.

    ``figures`` are name, caption and panels, the main one first; ``files`` are name -> content of downloads;
    ``refresh_s`` are seconds between reloads of the page while a sweep runs.
    """
    title = escape(data["title"])
    pictures = [_picture(*figure, files, level=3 if k else 2) for k, figure in enumerate(figures)]
    style, script = (_HERE / "page.css").read_text("utf-8"), (_HERE / "page.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    more = f"<h2>More figures</h2>\n{''.join(pictures[1:])}" if pictures[1:] else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        + (f'<meta http-equiv="refresh" content="{refresh_s:g}">' if refresh_s else "")
        + f"<title>{title}</title><style>{style}</style></head><body>\n<main>\n"
        + _head(data, refresh_s)
        + "".join(pictures[:1])
        + f"<h2>Tables</h2>\n<p>{escape(tables.explanation(analysis))}</p>\n"
        + f"<p>{escape(tables.tolerance_sentence(data))}</p>\n"
        + _tables(data, analysis)
        + f'<p class="downloads">Download: {_downloads(files, "csv")}</p>\n'
        + _claims(data)
        + more
        + (f'<h2 id="notes">Notes</h2>\n<ul class="notes">{_items(data["notes"])}</ul>\n' if data["notes"] else "")
        + _facts(data)
        + f"</main>\n<script>{script}</script></body></html>\n"
    )


def extract(data: Json, analysis: Analysis, files: Mapping[str, bytes]) -> str:
    """The verdicts, the tables and the first figure of ``files`` as HTML for a notebook's cell."""
    picture = next((content for name, content in files.items() if name.endswith(".png")), None)
    address = f"data:image/png;base64,{base64.b64encode(picture).decode()}" if picture else ""
    return (
        f"<p><b>{escape(data['headline'])}</b></p>\n"
        + f"<ul>{_items([*tables.other_verdicts(data), *data['notes']])}</ul>\n"
        + _tables(data, analysis)
        + f"<p>{escape(settings.sentence(data['settings']))}</p>\n"
        + (f'<img alt="{escape(data["headline"])}" src="{address}" style="max-width: 100%">\n' if picture else "")
    )


def _items(texts: Iterable[str]) -> str:
    return "".join(f"<li>{escape(text)}</li>" for text in texts)


def _head(data: Json, refresh_s: float | None) -> str:
    """The verdict in words, then what was run."""
    seeds, notes, others = len(data["seeds"]), len(data["notes"]), tables.other_verdicts(data)
    facts = [data["title"], f"{data['runs']} runs, {data['diverged']} of them diverged"]
    facts += [
        f"{seeds} seed{'s' * (seeds != 1)}",
        *([] if data["loss"] == TRAIN else [f"all losses are {EVALUATED[data['loss']]}"]),
    ]
    link = f' · <a href="#notes">{notes}&nbsp;note{"s" * (notes != 1)}</a>' if notes else ""
    claim, _, reason = data["headline"].partition(": ")
    opened = " open" * (len(others) <= _FEW_VERDICTS)
    more = f"<summary>All other verdicts ({len(others)})</summary><ul>{_items(others)}</ul>"
    return (
        f"<h1>{escape(claim)}</h1>\n"
        + (f'<p class="lead">{escape(reason[0].upper() + reason[1:])}</p>\n' if reason else "")
        + f'<p class="faint">{escape(" · ".join(facts))}{link}</p>\n'
        + (f'<p role="status">The sweep runs; this page reloads every {refresh_s:g} s.</p>\n' if refresh_s else "")
        + (f"<details{opened}>{more}</details>\n" if others else "")
    )


def _claims(data: Json) -> str:
    """The paper's claims, with what the sweep shows about each; empty for a sweep of no paper's figure."""
    if not data["claims"]:
        return ""
    listed = _items(one["sentence"] for one in data["claims"])
    return f"<h2>The paper's claims</h2>\n<ul>{listed}</ul>\n<p>{escape(tables.claims_cost(data))}</p>\n"


def _facts(data: Json) -> str:
    """What was trained, the axes of the sweep, devices and versions."""
    facts = {
        "figure, scale": f"{data['figure']}, {data['scale']}",
        **data["settings"],
        **{axis: ", ".join(map(number, values)) for axis, values in data["axes"].items()},
        "devices": "; ".join(data["devices"]),
        "time": tables.duration(data["hours"]),
        "versions": ", ".join(data["versions"]),
        "commits": ", ".join(data["commits"]),
    }
    rows = "".join(f'<tr><th scope="row">{escape(k)}</th><td>{escape(v)}</td></tr>' for k, v in facts.items())
    return f'<h2>How it was measured</h2>\n<table class="facts">{rows}</table>\n'


def _picture(name: str, caption: str, sheet: Sheet, files: Mapping[str, bytes], level: int) -> str:
    """A figure with a heading of a level; its bands side by side if each has one panel."""
    title, *details = plain(sheet.title).split("\n")
    sentences = ". ".join(text[0].upper() + text[1:] for text in (*details, caption))
    bands = "".join(_band(band, f"{name}-{k}-", level + 1) for k, band in enumerate(sheet.bands))
    if len(sheet.bands) > 1 and all(len(band.frames) == 1 for band in sheet.bands):
        bands = f'<div class="side">{bands}</div>\n'
    colors = _color_bar(*sheet.colors) if sheet.colors else ""
    links = " · ".join(filter(None, (_downloads(files, kind, name) for kind in ("png", "svg"))))
    return (
        f'<figure id="{escape(name)}"><h{level}>{escape(title)}</h{level}>\n{colors}{bands}'
        f"<figcaption>{escape(sentences)}</figcaption>\n"
        + (f'<p class="downloads">Download: {links}</p>' if links else "")
        + "</figure>\n"
    )


def _band(band: Band, prefix: str, level: int) -> str:
    heading = f"<h{level}>{escape(plain(band.heading))}</h{level}>\n" if band.heading else ""
    entries = "".join(_legend_entry(handle) for handle in band.legend)
    title = f"<li>{escape(band.legend_title)}:</li>" if band.legend_title and entries else ""
    legend = f'<ul class="legend">{title}{entries}</ul>\n' if entries else ""
    panels = "".join(
        "<div>"
        + (f"<p>{escape(plain(frame.heading))}</p>" if frame.heading else "")
        + inline_svg(frame, f"{prefix}{k}-")
        + "</div>\n"
        for k, frame in enumerate(band.frames)
    )
    return f'<section>{heading}{legend}<div class="panels">{panels}</div></section>\n'


def _legend_entry(handle: Line2D) -> str:
    color = themed(to_hex(handle.get_color()))
    glyph = _GLYPHS.get(str(handle.get_marker()), "┅" if handle.get_linestyle() == "--" else "━")
    label = escape(plain(str(handle.get_label())))
    return f'<li><span style="color: {color}" aria-hidden="true">{glyph}</span> {label}</li>'


def _color_bar(colors: ScalarMappable, label: str) -> str:
    """The color map from left to right, with its limits."""
    low, high = colors.get_clim()
    stops = ", ".join(to_hex(colors.get_cmap()(k / 8)) for k in range(9))
    bar = f'<span class="bar" style="background: linear-gradient(to right, {stops})" aria-hidden="true"></span>'
    return f'<p class="legend"><span></span>{escape(label)} {number(low)} {bar} {number(high)} and above</p>\n'


def _downloads(files: Mapping[str, bytes], kind: str, stem: str = "") -> str:
    links = []
    for name, content in files.items():
        path = pathlib.PurePath(name)
        if path.suffix == f".{kind}" and stem in ("", path.stem):
            address = f"data:{_TYPES[kind]};base64,{base64.b64encode(content).decode()}"
            text = kind.upper() if stem else name
            links.append(f'<a download="{escape(name)}" href="{address}">{escape(text)}</a>')
    return " · ".join(links)


def _tables(data: Json, analysis: Analysis) -> str:
    """A table per variant; without the columns that are empty in all of them."""
    head = [*tables.header(data), "diverged runs"]
    bodies = [
        [
            [*cells, ", ".join(f"{n} at {x}" for x, n in row["diverged"].items())]
            for cells, row in zip(tables.table_rows(variant), variant["rows"], strict=True)
        ]
        for variant in data["variants"]
    ]
    shown = [k for k in range(len(head)) if any(row[k] for body in bodies for row in body)]
    return "".join(
        _table(variant, [[row[k] for k in shown] for row in (head, *body)], analysis.scale.name)
        for variant, body in zip(data["variants"], bodies, strict=True)
    )


def _table(variant: Json, rows: Sequence[Sequence[str]], x: str) -> str:
    head, *body = rows
    columns = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>\n" for row in body)
    slopes = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in tables.slope_sentences(variant, x))
    name = f"<h3>{escape(variant['name'])}</h3>\n" if variant["name"] else ""
    label = escape(f"Results by size {variant['name']}".rstrip())
    return (
        f'{name}<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table><thead><tr>{columns}</tr></thead><tbody>{lines}</tbody></table></div>\n{slopes}"
    )


def _cell(text: str) -> str:
    """The text with its interval in a span, which is on a separate line on narrow screens."""
    return re.sub(r" ((?:\(|± |\.\. ).*)$", r" <span>\1</span>", escape(text))
