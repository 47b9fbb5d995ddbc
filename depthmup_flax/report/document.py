"""A page that opens from disk without a network: style, script and figures are inside."""

from __future__ import annotations

import base64
import hashlib
import pathlib
from collections.abc import Iterable, Mapping
from html import escape

from matplotlib.cm import ScalarMappable
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from depthmup_flax.report.inline_svg import inline_svg, plain, themed
from depthmup_flax.report.loss_surfaces import number
from depthmup_flax.report.sheet import Band, Sheet

_HERE = pathlib.Path(__file__).parent
_TYPES = {"png": "image/png", "svg": "image/svg+xml", "csv": "text/csv"}
_GLYPHS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚", "*": "★", "x": "✕"}


def document(title: str, body: str, refresh_s: float | None = None) -> str:
    """A page of HTML ``body``; its policy allows the package's script and no network.

    ``refresh_s`` are seconds between reloads.
    """
    style, script = (_HERE / "page.css").read_text("utf-8"), (_HERE / "page.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        + (f'<meta http-equiv="refresh" content="{refresh_s:g}">' if refresh_s else "")
        + f"<title>{escape(title)}</title><style>{style}</style></head><body>\n<main>\n{body}</main>\n"
        f"<script>{script}</script></body></html>\n"
    )


def items(texts: Iterable[str]) -> str:
    """The entries of a list."""
    return "".join(f"<li>{escape(text)}</li>" for text in texts)


def picture(name: str, caption: str, sheet: Sheet, files: Mapping[str, bytes], level: int) -> str:
    """A figure with a heading of a level; its bands side by side if each has one panel."""
    title, *details = plain(sheet.title).split("\n")
    sentences = ". ".join(text[0].upper() + text[1:] for text in (*details, caption))
    bands = "".join(_band(band, f"{name}-{k}-", level + 1) for k, band in enumerate(sheet.bands))
    if len(sheet.bands) > 1 and all(len(band.frames) == 1 for band in sheet.bands):
        bands = f'<div class="side">{bands}</div>\n'
    wide = "" if [len(band.frames) for band in sheet.bands] == [1] else ' class="wide"'
    colors = _color_bar(*sheet.colors) if sheet.colors else ""
    links = " · ".join(filter(None, (downloads(files, kind, name) for kind in ("png", "svg"))))
    return (
        f'<figure id="{escape(name)}"{wide}><h{level}>{escape(title)}</h{level}>\n{colors}{bands}'
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


def downloads(files: Mapping[str, bytes], kind: str, stem: str = "") -> str:
    """Links to the files of a kind, of one stem."""
    links = []
    for name, content in files.items():
        path = pathlib.PurePath(name)
        if path.suffix == f".{kind}" and stem in ("", path.stem):
            address = f"data:{_TYPES[kind]};base64,{base64.b64encode(content).decode()}"
            text = kind.upper() if stem else name
            links.append(f'<a download="{escape(name)}" href="{address}">{escape(text)}</a>')
    return " · ".join(links)
