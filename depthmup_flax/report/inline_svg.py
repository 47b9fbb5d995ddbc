"""A panel as SVG inside the page: its colors follow the reader's theme, and it carries its values for hovering."""

from __future__ import annotations

import functools
import html
import io
import json
import re

import matplotlib
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from depthmup_flax.report.sheet import Frame

PAGES = ("#ffffff", "#14171a")  # light and dark background, as in page.css
CONTRAST = 3.0  # least contrast of a line or mark with the page
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_THEMED = {
    **dict.fromkeys(("#000000", "#4c4c4c"), "currentColor"),
    "#737373": "var(--faint)",
    "#ffffff": "var(--page)",
    **dict.fromkeys(("#f0f0f0", "#e6e6e6"), "var(--band)"),
    "#b0b0b0": "var(--grid)",
}


def inline_svg(frame: Frame, prefix: str) -> str:
    """The panel as one ``<svg>``; ``prefix`` makes its ids unique in the page."""
    figure, content = frame.axes.get_figure(root=True), io.StringIO()
    assert figure is not None
    figure.draw_without_rendering()  # places the panel
    values = _placed_values(frame, figure)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "depthmup"}):
        figure.savefig(content, format="svg", metadata={"Date": None}, transparent=False)
    text = content.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = _with_unique_ids(text, prefix)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda match: themed(match[0]), text)
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None
    label = html.escape(f"{plain(frame.heading)}. {plain(frame.summary)}".lstrip(". "))
    data = html.escape(json.dumps(values, separators=(",", ":"), ensure_ascii=False))
    head = f'<svg {view[0]} role="img" tabindex="0" aria-label="{label}" data-values="{data}">'
    return head + re.sub(r"\n\s*", "\n", text[text.index(">") + 1 :].strip())


def plain(text: str) -> str:
    """Text for HTML from text for matplotlib: no escapes, no line breaks after commas, powers as superscripts."""
    powers = re.sub(r"\$2\^\{(-?\d+)\}\$", lambda match: "2" + match[1].translate(_SUPERSCRIPTS), text)
    return powers.replace(r"\$", "$").replace(",\n", ", ")


def themed(color: str) -> str:
    """A hex color of a figure as a CSS color that is visible on light and dark pages."""
    if color in _THEMED:
        return _THEMED[color]
    light, dark = _viridis().get(color) or tuple(_readable(color, page) for page in PAGES)
    return f"light-dark({light}, {dark})" if light != dark else color


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two hex colors, 1 to 21.

    References:
      Web Content Accessibility Guidelines 2.2, "contrast ratio" and "relative luminance".
    """
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _readable(color: str, page: str) -> str:
    """The color, mixed with black or white until it contrasts with the page."""
    target = 0 if _luminance(page) > 0.5 else 255
    channels = [int(color[k : k + 2], 16) for k in (1, 3, 5)]
    shares = (percent / 100 for percent in range(0, 101, 5))
    mixed = ("#" + "".join(f"{round(c + (target - c) * share):02x}" for c in channels) for share in shares)
    return next(color for color in mixed if contrast(color, page) >= CONTRAST)


@functools.cache
def _viridis() -> dict[str, tuple[str, str]]:
    """A color of the map -> its colors for light and dark pages, with a contrast of at least `CONTRAST` to 1.

    Larger sizes, which come first in the map, contrast more.
    """
    hexes = [to_hex(matplotlib.colormaps["viridis"](i)) for i in range(256)]
    return {color: (hexes[round(0.62 * i)], hexes[round(250 - 0.62 * i)]) for i, color in enumerate(hexes)}


def _placed_values(frame: Frame, figure: Figure) -> list[tuple[float, float, str]]:
    """x, y and text of the values inside the panel, in the SVG's units."""
    height, inside = figure.bbox.height, frame.axes.bbox.padded(2)
    placed = [(*value.transform.transform((value.x, value.y)), plain(value.text)) for value in frame.values]
    return [(round(x, 1), round(height - y, 1), text) for x, y, text in placed if inside.contains(x, y)]


def _with_unique_ids(text: str, prefix: str) -> str:
    """Prefixes the ids that are referred to and deletes the others, which matplotlib gives to every group."""
    used = set(re.findall(r"#([\w.-]+)[\")]", text))
    text = re.sub(r' id="([^"]*)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", text)
    return re.sub(r"((?:xlink:)?href=\"#|url\(#)", rf"\g<1>{prefix}", text)
