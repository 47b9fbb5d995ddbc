"""What all figures share: canvas, colors, axes, and files in two formats."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from depthmup_flax.report.curves import Scale

COLUMNS = 4  # panels side by side
Color: TypeAlias = tuple[float, float, float, float]
# The same file from the same records; names of a stranger's sweep are no formulas.
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 10,
    "figure.titlesize": 11,
    "legend.fontsize": 8,
    "legend.title_fontsize": 9,
    "svg.hashsalt": "depthmup",
    "text.parse_math": False,
    "text.usetex": False,  # which a user's settings may ask for, without LaTeX on this machine
}


def canvas(rows: int, columns: int, *, width: float = 4.0, height: float = 3.6, **kwargs: Any) -> tuple[Figure, Any]:
    """A figure and its (rows, columns) array of panels; sizes per panel in inches."""
    figure = Figure(figsize=(max(width * columns, 6.0) + 1.3, height * rows + 0.8), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def pictures(figure: Figure, name: str) -> dict[str, bytes]:
    """``name.png`` and ``name.svg`` with their content."""
    files = {}
    with matplotlib.rc_context({name: STYLE[name] for name in ("svg.hashsalt", "text.usetex")}):
        for kind in ("png", "svg"):
            content = io.BytesIO()
            figure.savefig(content, dpi=130, format=kind, metadata={"Date": None} if kind == "svg" else None)
            files[f"{name}.{kind}"] = content.getvalue()
            figure.set_layout_engine("none")  # the layout is computed once
    return files


def colors(sizes: Collection[int]) -> dict[int, Color]:
    """Size -> color, darker for larger ones; without the pale end of the color map, which is hard to see on white."""
    ranks = np.linspace(0.88, 0.0, len(sizes)) if len(sizes) > 1 else [0.3]
    return {size: colormaps["viridis"](float(rank)) for size, rank in zip(sorted(sizes), ranks, strict=False)}


def hyperparameter_axis(axis: Axis, scale: Scale) -> None:
    """A label and, on a log scale, ticks at values of the grid that are not too close; in coordinates of ``scale``."""
    axis.set_label_text(scale.name + (" (log scale)" if scale.log else ""))
    if scale.log:
        places = scale.coordinate(scale.values)
        apart, shown = (places[-1] - places[0]) / 5, [0]
        for i in range(1, len(places)):
            if places[i] - places[shown[-1]] > 0.99 * apart:
                shown.append(i)
        axis.set_ticks([places[i] for i in shown], labels=[f"{scale.values[i]:.3g}" for i in shown])


def log_y(axes: Axes) -> None:
    """A logarithmic y axis."""
    axes.set_yscale("log")
    plain_numbers(axes.yaxis)


def plain_numbers(axis: Axis, steps: Sequence[float] = (1, 2, 5)) -> None:
    """Ticks of a logarithmic axis at ``steps`` times powers of ten, without formulas."""
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter("{x:.3g}")
    axis.set_minor_formatter(NullFormatter())
