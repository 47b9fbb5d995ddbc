"""A figure as panels: all on one canvas for files, or one canvas each for the page, with values to hover over."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Transform

from depthmup_flax.report import style


@dataclasses.dataclass(frozen=True)
class Value:
    """A text to show near the point (x, y) in the coordinates of ``transform``."""

    x: float
    y: float
    text: str
    transform: Transform


@dataclasses.dataclass
class Frame:
    """One panel: its axes, its heading, what it shows in a sentence, and its values."""

    axes: Axes
    heading: str = ""
    summary: str = ""
    values: list[Value] = dataclasses.field(default_factory=list)

    def label_y(self, text: str) -> None:
        """Labels the y axis of the first panel of a row; the others have no label."""
        place = self.axes.get_subplotspec()
        assert place is not None
        self.axes.set_ylabel(text if place.is_first_col() else "")

    def value(self, x: float, y: float, text: str, transform: Transform | None = None) -> None:
        """Adds a value, by default in coordinates of the axes' data."""
        if math.isfinite(x) and math.isfinite(y):
            self.values.append(Value(float(x), float(y), text, transform or self.axes.transData))


@dataclasses.dataclass
class Band:
    """Panels that share a legend: of sizes along one axis, for example."""

    heading: str
    frames: list[Frame]
    legend_title: str = ""
    legend: list[Line2D] = dataclasses.field(default_factory=list)


class Sheet:
    """A figure. ``apart``: a canvas per panel, without title and legends, which the page writes itself."""

    figure: Figure  # of all panels, unless they are apart

    def __init__(self, *, apart: bool = False) -> None:
        self.apart = apart
        self.title = ""
        self.bands: list[Band] = []
        self.colors: tuple[ScalarMappable, str] | None = None  # what a color bar shows, and its label

    def add_bands(
        self,
        headings: Sequence[str],
        count: int,
        columns: int,
        *,
        per_row: int = 1,
        width: float = 4.0,
        height: float = 3.6,
        sharey: bool = True,
    ) -> list[Band]:
        """A band of ``count`` panels per heading; ``width`` and ``height`` of a panel in inches.

        In files, at most ``columns`` panels are side by side, or ``per_row`` bands of one panel.
        """
        if self.apart:
            # 72 dots per inch is the unit of an SVG. One or two panels fill the page's width: with the size of the
            # others, their text would be huge.
            size = (5.2, 3.8) if max(count, len(headings) if count == 1 else 1) <= 2 else (3.7, 3.3)
            lone = lambda: Figure(figsize=size, dpi=72, layout="constrained").subplots()
            self.bands = [Band(heading, [Frame(lone()) for _ in range(count)]) for heading in headings]
            return self.bands
        columns, wrapped = columns * per_row, math.ceil(count / columns)
        rows = len(headings) * wrapped // per_row
        self.figure, grid = style.canvas(rows, columns, width=width, height=height, sharey=sharey)
        for heading, panels in zip(headings, grid.reshape(len(headings), -1), strict=True):
            style.hide_unused(panels[count:])
            self.bands.append(Band(heading, [Frame(axes) for axes in panels[:count]]))
        return self.bands

    def set_title(self, text: str) -> None:
        """The title of the whole figure."""
        self.title = text
        if not self.apart:
            self.figure.suptitle(text, fontsize=11)

    def set_heading(self, frame: Frame, text: str) -> None:
        """The heading of one panel."""
        frame.heading = text
        if not self.apart:
            frame.axes.set_title(text, fontsize=10)

    def add_legend(self, band: Band, place: int, title: str, handles: Sequence[Line2D], **look: Any) -> None:
        """The legend of a band; in files to the right of its panel number ``place``, or as ``look`` says."""
        band.legend_title, band.legend = title, list(handles)
        if not self.apart:
            fonts = {"fontsize": 8, "title_fontsize": 9}
            where = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
            band.frames[place].axes.legend(handles=list(handles), title=title or None, **{**fonts, **where, **look})

    def add_color_bar(self, colors: ScalarMappable, label: str) -> None:
        """What the colors of all panels mean."""
        self.colors = colors, label
        if not self.apart:
            self.figure.colorbar(colors, ax=self.figure.axes, label=label, extend="max", shrink=0.8)
