"""A panel per variant and size axis, with the sizes' colors: the layout that most figures share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from depthmup_flax.report import style
from depthmup_flax.report.sheet import Frame, Sheet
from depthmup_flax.report.style import Color
from depthmup_flax.report.transfer import Analysis, Row, SizeAxis, Variant


@dataclasses.dataclass(frozen=True)
class Panel:
    """One variant's rows along one size axis; ``palette`` has the color of each size."""

    axis: SizeAxis
    variant: Variant
    frame: Frame
    sheet: Sheet
    palette: dict[int, Color]

    @property
    def axes(self) -> Axes:
        """Where it is drawn."""
        return self.frame.axes

    @property
    def rows(self) -> list[tuple[Row, int, Color]]:
        """The variant's rows on this axis with their sizes and colors, ascending."""
        sized = [(row, row.curve.size(self.axis.name)) for row in self.axis.rows(self.variant.rows)]
        return [(row, size, self.palette[size]) for row, size in sized]

    def remark(self, remarks: Sequence[str]) -> None:
        """Writes remarks on single sizes, such as ``64 not run``, into the upper right corner."""
        if remarks:
            text, corner = f"{self.axis.name} " + ", ".join(remarks), self.axes.transAxes
            self.axes.text(0.97, 0.97, text, transform=corner, ha="right", va="top", fontsize=8, wrap=True)

    def finish(self, ylabel: str, subtitle: str = "", summary: str = "") -> None:
        """Heading, grid, and a label of the first panel's y axis; ``summary`` says what the panel shows."""
        self.sheet.set_heading(self.frame, "\n".join(filter(None, (style.title_of(self.variant.name), subtitle))))
        self.frame.summary = summary
        self.axes.grid(alpha=0.25)
        fixed = "" if self.sheet.apart else f"\n({self.axis.other} {self.axis.fixed})"
        self.frame.label_y(ylabel + fixed)


def variant_panels(analysis: Analysis, sheet: Sheet, title: str, marks: Iterable[Line2D] = ()) -> list[Panel]:
    """A panel per size axis and variant, at most `style.COLUMNS` side by side; ``marks`` join the first legend."""
    columns = min(len(analysis.variants), style.COLUMNS)
    headings = [f"{axis.other} {axis.fixed}" for axis in analysis.axes]
    bands = sheet.add_bands(headings, len(analysis.variants), columns)
    sheet.set_title(title)
    panels = []
    for axis, band in zip(analysis.axes, bands, strict=True):
        palette = style.colors(axis.sizes)
        sizes = [Line2D([], [], color=c, marker="o", markersize=3, label=str(n)) for n, c in palette.items()]
        sheet.add_legend(band, columns - 1, axis.name, [*sizes, *(marks if band is bands[0] else ())])
        for variant, frame in zip(analysis.variants, band.frames, strict=True):
            panels.append(Panel(axis, variant, frame, sheet, palette))
    return panels
