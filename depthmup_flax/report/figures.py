"""The figure of a report: loss against x, a panel per variant and axis of sizes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from depthmup_flax.report import style
from depthmup_flax.report.style import Color
from depthmup_flax.report.transfer import Analysis, Row, SizeAxis, Variant

BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}  # of a legend: right of its panel


@dataclasses.dataclass(frozen=True)
class Panel:
    """One variant's rows of some sizes, ascending, with labels and colors."""

    axes: Axes
    variant: Variant
    rows: list[tuple[Row, str, Color]]


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Sizes that share a panel."""

    name: str  # of what varies
    fixed: str  # what does not
    labels: Mapping[tuple[int, int], str]  # width and depth -> label, ascending


def panel_grid(
    analysis: Analysis, title: str, ylabel: str, marks: Sequence[Line2D] = (), *, all_sizes: bool = False
) -> tuple[Figure, list[Panel]]:
    """A panel per size axis (from top to bottom) and variant; ``marks`` join the first legend.

    With ``all_sizes``, those on no axis have a panel of their own, with the base.
    """
    columns = min(len(analysis.variants), style.COLUMNS)
    rows_each = math.ceil(len(analysis.variants) / columns)
    shared = [_along(axis) for axis in analysis.axes]
    shared = _with_others(shared, analysis) if all_sizes else shared
    figure, grid = style.canvas(rows_each * len(shared), columns, sharey=True)
    figure.suptitle(title)
    panels = []
    for i, (sizes, places) in enumerate(zip(shared, grid.reshape(len(shared), -1), strict=True)):
        palette = dict(zip(sizes.labels, style.colors(range(len(sizes.labels))).values(), strict=True))
        for unused in places[len(analysis.variants) :]:
            unused.set_visible(False)
        for variant, axes in zip(analysis.variants, places, strict=False):
            by_size = {row.size: row for row in variant.rows}
            sized = [size for size in sizes.labels if size in by_size]
            panels.append(Panel(axes, variant, [(by_size[size], sizes.labels[size], palette[size]) for size in sized]))
            axes.set_title(title_of(variant.name))
        for axes in places[::columns]:
            axes.set_ylabel(f"{ylabel}\n{sizes.fixed}".rstrip())
        lines = [
            Line2D([], [], color=palette[size], marker="o", markersize=3, label=label)
            for size, label in sizes.labels.items()
        ]
        places[columns - 1].legend(handles=[*lines, *(marks if i == 0 else ())], title=sizes.name, **BESIDE)
    return figure, panels


def _along(axis: SizeAxis) -> _Sizes:
    """The sizes of an axis."""
    size = lambda value: (value, axis.fixed) if axis.name == "width" else (axis.fixed, value)
    return _Sizes(axis.name, f"({axis.other} {axis.fixed})", {size(value): str(value) for value in axis.sizes})


def _with_others(shared: Sequence[_Sizes], analysis: Analysis) -> list[_Sizes]:
    """These, unless they are a single size; and the sizes among none of them, with the bases."""
    drawn = {size for sizes in shared for size in sizes.labels}
    others = {row.size for row in analysis.rows} - drawn
    if not others:
        return list(shared)
    ordered = sorted(
        others | {variant.base.size for variant in analysis.variants}, key=lambda size: size[0] ** 2 * size[1]
    )
    labels = {(width, depth): f"{width} x {depth}" for width, depth in ordered}
    return [*(sizes for sizes in shared if len(sizes.labels) > 1), _Sizes("width x depth", "", labels)]


def title_of(name: str) -> str:
    """Long names are broken at commas."""
    name = name if len(name) <= 100 else f"{name[:97]}..."
    return name if len(name) < 40 else name.replace(", ", ",\n")


def seeds_of(analysis: Analysis) -> str:
    """What lines and shades show."""
    seeds = sorted({len(row.curve.seeds) for row in analysis.rows})
    counts = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return "one seed (n = 1)" if seeds == [1] else f"mean ± standard deviation of n = {counts} seeds"


def mean_and_spread(axes: Axes, x: np.ndarray, losses: np.ndarray, color: Color, top: float) -> None:
    """A line through the means of losses (S, N), shaded by one standard deviation where the mean is below ``top``."""
    means = losses.mean(0)
    axes.plot(x, means, color=color, linewidth=1.5, marker="o", markersize=2.8)
    if len(losses) > 1:
        spread = np.where(means > top, np.nan, losses.std(0, ddof=1))
        axes.fill_between(x, means - spread, means + spread, color=color, alpha=0.18, linewidth=0)


def draw_transfer(analysis: Analysis) -> Figure:
    """Loss against x, a line per size, the optimum marked."""
    scale, rows = analysis.scale, analysis.rows
    low, top, is_log = loss_limits(rows)
    best = f", each point at its best {analysis.other.name}" if analysis.other else ""
    title = f"{analysis.loss_name.capitalize()} against {scale.name}{best}\n{seeds_of(analysis)}"
    looks: dict[str, dict[str, Any]] = {
        "optimum": {"marker": "*", "markersize": 11, "markeredgecolor": "black"},
        "of the base": {"color": "0.45", "linestyle": "--"},
        "a run diverged": {"marker": "x"},
        "above the panel": {"marker": "^"},
    }
    if not any(row.curve.diverged.any() for row in rows):
        del looks["a run diverged"]
    if not any((row.curve.losses.mean(0) > top).any() for row in rows):
        del looks["above the panel"]
    marks = [Line2D([], [], label=label, **{"color": "0.3", "linestyle": "", **look}) for label, look in looks.items()]
    figure, panels = panel_grid(analysis, title, analysis.loss_name, marks, all_sizes=True)
    strip = 0.03 * max(len(panel.rows) for panel in panels)  # of the panel, for marks above the curves
    share, u = 1 / (1 - strip), scale.coordinate(scale.values)
    margin = 0.4 * float(np.diff(u).min()) if len(u) > 1 else 0.4
    for panel in panels:
        axes = panel.axes
        if is_log:
            style.log_y(axes)
        if panel.variant.base.optimum:
            axes.axvline(panel.variant.base.optimum.at.value, color="0.45", linestyle="--", linewidth=1.0)
        for place, (row, _, color) in enumerate(panel.rows):
            curve = row.curve
            mean_and_spread(axes, scale.coordinate(curve.x), curve.losses, color, top)
            means = curve.losses.mean(0)
            for mark, where in (("x", curve.diverged > 0), ("^", np.isfinite(means) & (means > top))):
                at, line = scale.coordinate(curve.x[where]), 0.98 - 0.03 * place
                height = np.full(len(at), line)
                axes.plot(at, height, mark, color=color, markersize=4.5, transform=axes.get_xaxis_transform())
            if row.optimum and row.trains:
                fill = color if row.bracketed else "white"  # hollow at the edge of the grid
                star = looks["optimum"] | {"linestyle": "", "markersize": 14, "markerfacecolor": fill, "zorder": 5}
                axes.plot(row.optimum.at.value, row.optimum.loss.value, **star)
        axes.set_ylim(low, low * (top / low) ** share if is_log else low + (top - low) * share)
        axes.set_xlim(u[0] - margin, u[-1] + margin)
        style.hyperparameter_axis(axes.xaxis, scale)
    return figure


def loss_limits(rows: Sequence[Row]) -> tuple[float, float, bool]:
    """Lowest and highest loss to show, and whether on a log scale (if they differ more than twenty-fold).

    All optima of sizes that train and 80 % of their finite means are in view; extreme losses do not flatten the rest.
    """
    means = np.concatenate([row.curve.losses.mean(0) for row in rows if row.trains] or [np.zeros(0)])
    finite = means[np.isfinite(means)]
    best = np.array([row.optimum.loss.value for row in rows if row.optimum and row.trains])
    if not len(best):
        return 0.0, 1.0, False
    most = min(float(np.quantile(finite, 0.8)), 3 * float(np.median(finite)))
    top = max(most, best.max() + 0.15 * (best.max() - best.min()))
    if finite.max() < best.min() + 1.7 * (top - best.min()):  # no loss is extreme
        top = finite.max()
    top = max(top + 0.05 * (top - best.min()), best.min() + 0.02 * abs(best.min()) + 1e-9)
    is_log = bool(best.min() > 0 and 20 < top / best.min() < 1e30)
    low = best.min() / 1.3 if is_log else best.min() - 0.08 * (top - best.min())
    return float(low), float(top), is_log


def draw_course(reference: Mapping[str, Sequence[Any]], run: Mapping[str, Sequence[Any]]) -> Figure:
    """Columns of two runs by step, a panel for each kind and a color for each role; see `dm.compare_runs`."""
    names = [name for name in run if name != "step" and name.count("/") < 2]  # not of single tensors
    kinds = list(dict.fromkeys(name.partition("/")[0] for name in names))
    roles = list(dict.fromkeys(role for name in names if (role := name.partition("/")[2])))
    palette = dict(zip(["", *roles], [(0.3, 0.3, 0.3, 1.0), *style.colors(range(len(roles))).values()], strict=True))
    figure, grid = style.canvas(1, len(kinds), width=3.4)
    for kind, axes in zip(kinds, grid[0], strict=True):
        for name in names:
            before, _, role = name.partition("/")
            if before == kind:
                shown = lambda columns, name=name: [value or math.nan for value in columns[name]]
                axes.plot(reference["step"], shown(reference), "--", color=palette[role], linewidth=1.2)
                axes.plot(run["step"], shown(run), "o-", color=palette[role], linewidth=1.2, markersize=3.5)
        axes.set_title(kind)
        axes.set_xlabel("step")
        axes.set_xscale("log")
        style.plain_numbers(axes.xaxis)
        style.log_y(axes)
    looks = [Line2D([], [], color="0.3", label="run"), Line2D([], [], color="0.3", linestyle="--", label="reference")]
    colors = [Line2D([], [], color=palette[role], label=role) for role in roles]
    grid[0][-1].legend(handles=[*looks, *colors], **BESIDE)
    return figure


def of_course(reference: Any, run: Any) -> dict[str, bytes]:
    """The files of `draw_course`."""
    with matplotlib.rc_context(style.STYLE):
        return style.pictures(draw_course(reference, run), "course")


def drawn(analysis: Analysis) -> list[tuple[str, dict[str, bytes]]]:
    """Captions and files of all figures of a report; none if there is one value of x. A new figure is an entry here."""
    if len(analysis.scale.values) == 1:
        return []
    x = analysis.scale.name
    caption = (
        f"Loss against {x}, a line per size. Stars mark optima, the dashed line the base's. The {x} transfers if "
        "the stars lie on the dashed line and larger networks have a lower loss."
    )
    with matplotlib.rc_context(style.STYLE):
        return [(caption, style.pictures(draw_transfer(analysis), "transfer"))]
