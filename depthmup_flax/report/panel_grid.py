"""Figures with one panel per variant, and one row of panels per size that varies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from depthmup_flax.report.style import COLUMNS, Color, canvas, colors, hide_unused, size_legend, title_of
from depthmup_flax.report.transfer import Row, SizeAxis, Study, Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


@dataclasses.dataclass(frozen=True)
class Panel:
    """One variant along one size axis.

    Attributes:
      axis: whose sizes are the panel's lines.
      variant: whose rows are drawn.
      axes: to draw on.
      palette: size -> color.
      has_legend: whether the legend stands beside this panel.
    """

    axis: SizeAxis
    variant: Variant
    axes: Axes
    palette: dict[int, Color]
    has_legend: bool

    @property
    def rows(self) -> list[tuple[Row, int, Color]]:
        """The variant's rows on this axis with their sizes and colors, ascending."""
        sized = [(row, row.curve.size(self.axis.name)) for row in self.axis.rows(self.variant.rows)]
        return [(row, size, self.palette[size]) for row, size in sized]

    def finish(self, ylabel: str, subtitle: str = "", legend: Iterable[Line2D] = ()) -> None:
        """Title, grid, legend, and a label of the first panel's y axis that names the fixed size."""
        self.axes.set_title("\n".join(filter(None, (title_of(self.variant.name), subtitle))), fontsize=10)
        self.axes.grid(alpha=0.25)
        place = self.axes.get_subplotspec()
        first = place is not None and place.is_first_col()
        self.axes.set_ylabel(f"{ylabel}\n({self.axis.other} {self.axis.fixed})" if first else "")
        if self.has_legend:
            size_legend(self.axes, self.axis.name, self.palette, legend)


def variant_panels(study: Study, title: str) -> tuple[Figure, list[Panel]]:
    """A figure with a panel per size axis and variant, at most `COLUMNS` side by side."""
    axes, count = study.axes, len(study.variants)
    columns = min(count, COLUMNS)
    wrapped = math.ceil(count / columns)
    figure, grid = canvas(len(axes) * wrapped, columns, sharey=True)
    figure.suptitle(title, fontsize=11)
    panels = []
    for i, axis in enumerate(axes):
        own = grid[i * wrapped : (i + 1) * wrapped].ravel()
        palette = colors(axis.sizes)
        panels += [Panel(axis, v, own[k], palette, k == columns - 1) for k, v in enumerate(study.variants)]
        hide_unused(own[count:])
    return figure, panels


def spread_sentence(study: Study) -> str:
    """What lines and shades show."""
    seeds = sorted({len(row.curve.seeds) for row in study.rows})
    counts = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return "one seed (n = 1)" if seeds == [1] else f"mean ± standard deviation of n = {counts} seeds"
