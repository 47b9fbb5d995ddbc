"""The page: one HTML file that opens from disk, without a network."""

from __future__ import annotations

import base64
import hashlib
import html
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from depthmup_flax.report import tables
from depthmup_flax.report.inline_svg import inline_svg, plain, themed
from depthmup_flax.report.loss_surfaces import TEST, number
from depthmup_flax.report.sheet import Band, Sheet
from depthmup_flax.report.transfer import Study
from depthmup_flax.util.types import Json

if TYPE_CHECKING:
    from matplotlib.cm import ScalarMappable
    from matplotlib.lines import Line2D

_HERE = pathlib.Path(__file__).parent
_CAPTIONS = {
    "transfer": "Loss against {x}, a line per size. Stars mark optima, the dashed line the base's. "
    "The {x} transfers if the stars lie on the dashed line and larger networks have a lower loss.",
    "optima": "The best {x} of each size. A flat line means transfer; the slope is the exponent of size.",
    "curves": "Every size trained with the base's best {x}. With transfer, the curves coincide early in training "
    "and larger networks end lower.",
    "over_time": "The best {x} if training had stopped earlier. A flat line means that it is settled early.",
    "heatmap": "Inside the red line the loss is close to the lowest, so one hyperparameter can be "
    "traded for the other along it; its slope is the rate of exchange.",
    "parameters": "The lowest loss of each size against its parameter count. Steeper lines gain more per parameter.",
}
_FEW_VERDICTS = 4  # more are folded
_TYPES = {"png": "image/png", "svg": "image/svg+xml", "csv": "text/csv"}
_GLYPHS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚", "*": "★", "x": "✕"}


def render(
    data: Json,
    figures: Sequence[tuple[str, Sheet, Study]],
    study: Study,
    files: Mapping[str, bytes],
    refresh_s: float | None = None,
) -> str:
    """The page of the `as_data` of a study.

    Args:
      data: from `as_data`.
      figures: name, panels and study of each figure, the main one first.
      study: the one along x.
      files: name -> content of the files to download: of each figure, and the tables.
      refresh_s: every how many seconds the page loads itself again, while a sweep runs.
    """
    title = html.escape(data["title"])
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
        + f"<h2>Tables</h2>\n<p>{html.escape(tables.explanation(study))}</p>\n"
        + f"<p>{html.escape(tables.tolerance_sentence(data))}</p>\n"
        + _tables(data, study)
        + f'<p class="downloads">Download: {_downloads(files, "csv")}</p>\n'
        + _claims(data)
        + more
        + _notes(data)
        + _facts(data)
        + f"</main>\n<script>{script}</script></body></html>\n"
    )


def _head(data: Json, refresh_s: float | None) -> str:
    """The verdict in words, then what was run."""
    seeds = len(data["seeds"])
    facts = [f"{data['runs']} runs, {data['diverged']} of them diverged", f"{seeds} seed{'s' * (seeds != 1)}"]
    facts += ["all losses on the test set"] * (data["loss"] == TEST)
    notes = len(data["notes"])
    link = f' · <a href="#notes">{notes}&nbsp;note{"s" * (notes != 1)}</a>' if notes else ""
    claim, _, reason = data["headline"].partition(": ")
    others = tables.other_verdicts(data)
    listed = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in others)
    opened = " open" * (len(others) <= _FEW_VERDICTS)
    more = f"<details{opened}><summary>All other verdicts ({len(others)})</summary><ul>{listed}</ul></details>\n"
    facts_line = f'<p class="faint">{html.escape(" · ".join([data["title"], *facts]))}{link}</p>\n'
    return (
        f"<h1>{html.escape(claim)}</h1>\n"
        + (f'<p class="lead">{html.escape(reason[0].upper() + reason[1:])}</p>\n' if reason else "")
        + facts_line
        + (f'<p role="status">The sweep runs; this page reloads every {refresh_s:g} s.</p>\n' if refresh_s else "")
        + (more if others else "")
    )


def _claims(data: Json) -> str:
    """The paper's claims, with what the sweep shows about each; empty for a sweep of no paper's figure."""
    if not data["claims"]:
        return ""
    listed = "".join(f"<li>{html.escape(one['sentence'])}</li>\n" for one in data["claims"])
    return f"<h2>The paper's claims</h2>\n<ul>{listed}</ul>\n<p>{html.escape(tables.claims_cost(data))}</p>\n"


def _notes(data: Json) -> str:
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in data["notes"])
    return f'<h2 id="notes">Notes</h2>\n<ul class="notes">{notes}</ul>\n' if notes else ""


def _facts(data: Json) -> str:
    """The axes of the sweep, devices and versions."""
    facts = [
        ("figure, scale", f"{data['figure']}, {data['scale']}"),
        *((axis, ", ".join(map(number, values))) for axis, values in data["axes"].items()),
        ("devices", "; ".join(data["devices"])),
        ("time", f"{data['hours']:.3g} hours"),
        ("versions", ", ".join(data["versions"])),
        ("commits", ", ".join(data["commits"])),
    ]
    rows = "".join(f'<tr><th scope="row">{html.escape(k)}</th><td>{html.escape(v)}</td></tr>' for k, v in facts)
    return f'<h2>How it was measured</h2>\n<table class="facts">{rows}</table>\n'


def _picture(name: str, sheet: Sheet, study: Study, files: Mapping[str, bytes], level: int) -> str:
    """A figure with a heading of a level; its bands side by side if each has one panel."""
    kind = "transfer" if name.startswith("transfer") else name
    title, *details = plain(sheet.title).split("\n")
    sentences = [text[0].upper() + text[1:] for text in (*details, _CAPTIONS[kind].format(x=study.scale.name))]
    caption = html.escape(". ".join(sentences))
    bands = "".join(_band(band, f"{name}-{k}-", level + 1) for k, band in enumerate(sheet.bands))
    if len(sheet.bands) > 1 and all(len(band.frames) == 1 for band in sheet.bands):
        bands = f'<div class="side">{bands}</div>\n'
    colors = _color_bar(*sheet.colors) if sheet.colors else ""
    links = " · ".join(filter(None, (_downloads(files, kind, name) for kind in ("png", "svg"))))
    return (
        f'<figure id="{html.escape(name)}"><h{level}>{html.escape(title)}</h{level}>\n{colors}{bands}'
        f"<figcaption>{caption}</figcaption>\n"
        + (f'<p class="downloads">Download: {links}</p>' if links else "")
        + "</figure>\n"
    )


def _band(band: Band, prefix: str, level: int) -> str:
    heading = f"<h{level}>{html.escape(plain(band.heading))}</h{level}>\n" if band.heading else ""
    entries = "".join(_legend_entry(handle) for handle in band.legend)
    title = f"<li>{html.escape(band.legend_title)}:</li>" if band.legend_title and entries else ""
    legend = f'<ul class="legend">{title}{entries}</ul>\n' if entries else ""
    panels = "".join(
        "<div>"
        + (f"<p>{html.escape(plain(frame.heading))}</p>" if frame.heading else "")
        + inline_svg(frame, f"{prefix}{k}-")
        + "</div>\n"
        for k, frame in enumerate(band.frames)
    )
    return f'<section>{heading}{legend}<div class="panels">{panels}</div></section>\n'


def _legend_entry(handle: Line2D) -> str:
    from matplotlib.colors import to_hex

    color = themed(to_hex(handle.get_color()))
    glyph = _GLYPHS.get(str(handle.get_marker()), "┅" if handle.get_linestyle() == "--" else "━")
    label = html.escape(plain(str(handle.get_label())))
    return f'<li><span style="color: {color}" aria-hidden="true">{glyph}</span> {label}</li>'


def _color_bar(colors: ScalarMappable, label: str) -> str:
    """The color map from left to right, with its limits."""
    from matplotlib.colors import to_hex

    low, high = colors.get_clim()
    stops = ", ".join(to_hex(colors.get_cmap()(k / 8)) for k in range(9))
    bar = f'<span class="bar" style="background: linear-gradient(to right, {stops})" aria-hidden="true"></span>'
    return f'<p class="legend"><span></span>{html.escape(label)} {number(low)} {bar} {number(high)} and above</p>\n'


def _downloads(files: Mapping[str, bytes], kind: str, stem: str = "") -> str:
    links = []
    for name, content in files.items():
        path = pathlib.PurePath(name)
        if path.suffix == f".{kind}" and stem in ("", path.stem):
            address = f"data:{_TYPES[kind]};base64,{base64.b64encode(content).decode()}"
            text = kind.upper() if stem else name
            links.append(f'<a download="{html.escape(name)}" href="{address}">{html.escape(text)}</a>')
    return " · ".join(links)


def _tables(data: Json, study: Study) -> str:
    """A table per variant; columns that are empty in all of them are left out."""
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
        _table(variant, [[row[k] for k in shown] for row in (head, *body)], study.scale.name)
        for variant, body in zip(data["variants"], bodies, strict=True)
    )


def _table(variant: Json, rows: Sequence[Sequence[str]], x: str) -> str:
    head, *body = rows
    columns = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>\n" for row in body)
    slopes = "".join(f"<p>{html.escape(sentence)}</p>\n" for sentence in tables.slope_sentences(variant, x))
    name = f"<h3>{html.escape(variant['name'])}</h3>\n" if variant["name"] else ""
    label = html.escape(f"Results by size {variant['name']}".rstrip())
    return (
        f'{name}<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table><thead><tr>{columns}</tr></thead><tbody>{lines}</tbody></table></div>\n{slopes}"
    )


def _cell(text: str) -> str:
    """The text; its interval, which has a line of its own on narrow screens, is marked."""
    return re.sub(r" ((?:\(|± |\.\. ).*)$", r" <span>\1</span>", html.escape(text))
