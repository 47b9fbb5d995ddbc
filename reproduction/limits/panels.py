"""Drawing that the figures share: a page of panels, points with error bars, guides of an expected slope, size axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from depthmup_flax.report.style import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import ColorType
    from numpy.typing import ArrayLike

Panel: TypeAlias = "Axes"
Page: TypeAlias = "Figure"
Color: TypeAlias = "ColorType"


def page(
    rows: int, columns: int, title: str, *, width: float, height: float, sharey: str | bool = False
) -> tuple[Page, np.ndarray]:
    """A titled figure and its (rows, columns) panels; sizes of a panel in inches, ``sharey`` as of ``subplots``."""
    figure, panels = canvas(rows, columns, width=width, height=height, sharey=sharey)
    figure.suptitle(title, fontsize=11)
    return figure, panels


def points(
    panel: Panel, x: ArrayLike, y: ArrayLike, error: ArrayLike | None = None, *, joined: bool = False, **style: Any
) -> None:
    """Points with error bars, with a line if ``joined``; ``style`` is a color and a label."""
    panel.errorbar(x, y, error, fmt="o-" if joined else "o", markersize=4, linewidth=1.2, capsize=2, **style)


def draw_groups(panel: Panel, groups_of_size: Mapping[int, Iterable[float]], color: Color, label: str) -> None:
    """Mean and standard deviation over groups of networks, over size."""
    values = np.array([list(groups) for groups in groups_of_size.values()])
    points(panel, list(groups_of_size), values.mean(1), values.std(1, ddof=1), color=color, label=label, joined=True)


def guide(panel: Panel, sizes: Sequence[int], start: float, power: float, label: str | None = None) -> None:
    """A dashed line of an expected slope, from ``start`` at the smallest size."""
    x = np.array([min(sizes), max(sizes)], float)
    panel.plot(x, start * (x / x[0]) ** power, "--", color="0.45", linewidth=1.2, zorder=1, label=label)


def size_ticks(panel: Panel, sizes: Sequence[int], name: str) -> None:
    """A log2 axis of widths or depths, with a tick at each."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(sizes), labels=[str(size) for size in sizes], minor=False)
    panel.minorticks_off()
    panel.set_xlabel(name)


def size_axis(panel: Panel, sizes: Sequence[int], name: str, *, title: str, ylabel: str, log: bool = True) -> None:
    """A log axis of widths or depths under errors, which are on a log axis too unless ``log`` is false."""
    if log:
        panel.set_yscale("log")
    size_ticks(panel, sizes, name)
    panel.set(title=title, ylabel=ylabel)


def finish(panels: Iterable[Panel], columns: int = 2) -> None:
    """A grid, and a legend below each panel, where it covers no data."""
    for panel in panels:
        panel.grid(alpha=0.25)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=columns, fontsize=8, frameon=False)
