"""What all figures share: canvas, panels, colors, lines, ticks, and files in two formats."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import math
import pathlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from depthmup_flax.storage.workdir.files import write_atomically
from depthmup_flax.util.errors import InputError, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from depthmup_flax.report.loss_surfaces import Scale
    from depthmup_flax.report.transfer import Analysis

COLUMNS = 4  # panels side by side
Color: TypeAlias = tuple[float, float, float, float]


NO_MATPLOTLIB = 'matplotlib, which draws them, is not installed. Run pip install "depthmup-flax[report]".'


def has_matplotlib() -> bool:
    """Whether matplotlib, an optional dependency, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def require_matplotlib(what: str) -> None:
    """Raises InputError if matplotlib is not installed; ``what`` is drawn."""
    if not has_matplotlib():
        raise InputError(f"there is no {what}: {NO_MATPLOTLIB}")


def drawable(analysis: Analysis) -> Analysis:
    """The analysis with names that matplotlib draws literally: a ``$`` in a record's name would start a formula."""
    plain = lambda name: printable(name if len(name) <= 100 else f"{name[:97]}...").replace("$", r"\$")
    return dataclasses.replace(
        analysis,
        scale=dataclasses.replace(analysis.scale, axis=plain(analysis.scale.axis)),
        other=analysis.other and dataclasses.replace(analysis.other, axis=plain(analysis.other.axis)),
        surfaces=tuple(dataclasses.replace(surface, variant=plain(surface.variant)) for surface in analysis.surfaces),
        variants=tuple(dataclasses.replace(variant, name=plain(variant.name)) for variant in analysis.variants),
    )


def canvas(rows: int, columns: int, *, width: float = 4.0, height: float = 3.6, **kwargs: Any) -> tuple[Figure, Any]:
    """A figure and its (rows, columns) array of panels; sizes per panel in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(width * columns, 6.0) + 1.3, height * rows + 0.8), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def save(figure: Figure, out: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Writes ``name.png`` and ``name.svg``, each complete or absent."""
    paths = []
    for file, content in pictures(figure, file_name(name)).items():
        write_atomically(out / file, content)
        paths.append(out / file)
    return paths


def file_name(name: str) -> str:
    """A safe file name without suffix: the name of an axis may come from a stranger's sweep.json."""
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:100]


def pictures(figure: Figure, name: str) -> dict[str, bytes]:
    """``name.png`` and ``name.svg`` with their content."""
    import matplotlib

    files = {}
    for kind in ("png", "svg"):
        content = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "depthmup"}):  # the same file from the same records
            figure.savefig(content, dpi=130, format=kind, metadata={"Date": None} if kind == "svg" else None)
        files[f"{name}.{kind}"] = content.getvalue()
        figure.set_layout_engine("none")  # the layout is computed once
    return files


def colors(sizes: Collection[int]) -> dict[int, Color]:
    """Size -> color, darker for larger ones; without the pale end of the color map, which is hard to see on white."""
    from matplotlib import colormaps

    ranks = np.linspace(0.88, 0.0, len(sizes)) if len(sizes) > 1 else [0.3]
    return {size: colormaps["viridis"](float(rank)) for size, rank in zip(sorted(sizes), ranks, strict=False)}


def mean_and_spread(
    panel: Axes, x: np.ndarray, losses: np.ndarray, color: Color, top: float, markersize: float
) -> None:
    """A line through the means of losses (S, N), shaded by one standard deviation where the mean is below ``top``.

    The shade of a loss far above the panel would cover the panel.
    """
    means = losses.mean(0)
    panel.plot(x, means, color=color, linewidth=1.5, marker="o", markersize=markersize, zorder=2)
    if len(losses) > 1:
        spread = np.where(means > top, np.nan, losses.std(0, ddof=1))
        panel.fill_between(x, means - spread, means + spread, color=color, alpha=0.18, linewidth=0, zorder=1.5)


def hyperparameter_axis(axis: Axis, scale: Scale) -> None:
    """A label and, on a log scale, ticks at values of the grid that are not too close; in coordinates of ``scale``."""
    axis.set_label_text(scale.name + (" (log scale)" if scale.log else ""))
    if scale.log:
        labels = [value_label(value, scale) for value in scale.values]
        most = 5 if any(len(label) > 6 and "$" not in label for label in labels) else 7
        places = scale.coordinate(scale.values)
        apart, shown = (places[-1] - places[0]) / most, [0]
        for i in range(1, len(places)):
            if places[i] - places[shown[-1]] > 0.99 * apart:
                shown.append(i)
        axis.set_ticks([places[i] for i in shown], labels=[labels[i] for i in shown])


def value_label(value: float, scale: Scale) -> str:
    """A power of two if all values of the grid are, unless all are small integers; else three digits."""
    powers = scale.log and all(math.frexp(v)[0] == 0.5 for v in scale.values)
    plain = all(v == int(v) and v < 1000 for v in scale.values)
    return f"$2^{{{round(math.log2(value))}}}$" if powers and not plain else f"{value:.3g}"


def size_ticks(panel: Axes, sizes: Sequence[int], name: str) -> None:
    """A log2 axis of widths or depths, with a tick at each."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(sizes), labels=[str(size) for size in sizes], minor=False)
    panel.minorticks_off()
    panel.set_xlabel(name)


def hide_unused(panels: Iterable[Axes]) -> None:
    """Hides the empty panels of a wrapped row."""
    for panel in panels:
        panel.set_visible(False)


def title_of(name: str) -> str:
    """A panel's title; long names of variants are broken at commas."""
    return name if len(name) < 40 else name.replace(", ", ",\n")


def format_slope(value: float, half: float | None, digits: int = 2) -> str:
    """``-0.50 ± 0.03``."""
    return f"{value:.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else " (no interval)")


def spread_sentence(analysis: Analysis) -> str:
    """Says what lines and shades show."""
    seeds = sorted({len(row.curve.seeds) for row in analysis.rows})
    counts = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return "one seed (n = 1)" if seeds == [1] else f"mean ± standard deviation of n = {counts} seeds"
