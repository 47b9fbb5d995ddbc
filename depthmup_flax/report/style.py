"""What all figures share: canvas, colors, ticks of an axis of hyperparameters, and files in two formats."""

from __future__ import annotations

import importlib.util
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from depthmup_flax.errors import InputError
from depthmup_flax.report.loss_surfaces import Scale

_DPI = 130
_MAX_TICKS = 7
COLUMNS = 4  # panels side by side


def require_matplotlib() -> None:
    """InputError where matplotlib, an optional dependency, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("matplotlib is not installed and draws the figures: pip install 'depthmup-flax[report]'.")


def canvas(rows: int, columns: int, *, width: float = 4.0, height: float = 3.6, **kwargs: Any) -> tuple[Any, Any]:
    """A figure and its (rows, columns) panels; sizes per panel in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(width * columns, 6.0) + 1.3, height * rows + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def save(figure: Any, out: pathlib.Path, name: str) -> list[pathlib.Path]:
    """``name.png`` and ``name.svg``, each complete or absent."""
    import matplotlib

    paths = []
    name = name.replace(os.sep, "_")  # of an axis, from a file that may come from anywhere
    for kind in ("png", "svg"):
        path = out / f"{name}.{kind}"
        temporary = out / f".{name}.{kind}.tmp"
        with matplotlib.rc_context({"svg.hashsalt": "depthmup"}):  # the same file from the same records
            figure.savefig(temporary, dpi=_DPI, format=kind, metadata={"Date": None} if kind == "svg" else None)
        os.replace(temporary, path)
        figure.set_layout_engine("none")  # found once
        paths.append(path)
    return paths


def colors(sizes: Sequence[int]) -> dict[int, Any]:
    """Size -> color, darker for larger ones; without the pale end of the map, which is hard to see on white."""
    from matplotlib import colormaps

    ranks = np.linspace(0.88, 0.0, len(sizes)) if len(sizes) > 1 else [0.3]
    return {size: colormaps["viridis"](rank) for size, rank in zip(sorted(sizes), ranks, strict=True)}


def hyperparameter_axis(axis: Any, scale: Scale) -> None:
    """A label, and on a log scale ticks at values of the grid; the axis is drawn in coordinates of ``scale``."""
    axis.set_label_text(scale.name + (" (log scale)" if scale.log else ""))
    if not scale.log:
        return
    values = list(scale.values)
    shown = values[:: math.ceil(len(values) / _MAX_TICKS)]
    axis.set_ticks(list(scale.coordinate(shown)), labels=[value_label(v, scale) for v in shown])


def value_label(value: float, scale: Scale) -> str:
    """A power of two if the whole grid is of them and some are no small whole numbers; else three digits."""
    powers = scale.log and all(math.frexp(v)[0] == 0.5 for v in scale.values)
    plain = all(v == int(v) and v < 1000 for v in scale.values)
    return f"$2^{{{round(math.log2(value))}}}$" if powers and not plain else f"{value:.3g}"


def size_ticks(panel: Any, sizes: Sequence[int], name: str) -> None:
    """A log2 axis of widths or depths, a tick at each."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(sizes), labels=[str(size) for size in sizes], minor=False)
    panel.minorticks_off()
    panel.set_xlabel(name)


def hide_unused(panels: Sequence[Any]) -> None:
    """Panels of a wrapped row that hold nothing."""
    for panel in panels:
        panel.set_visible(False)


def title_of(name: str) -> str:
    """A panel's; long names of variants are broken at commas."""
    return name if len(name) < 40 else name.replace(", ", ",\n")


def format_slope(value: float, half: float | None, digits: int = 2) -> str:
    """``-0.50 ± 0.03``."""
    return f"{value:.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else " (no interval)")
