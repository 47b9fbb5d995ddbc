"""The figures of a report. A new one is a function that draws an analysis, and an entry in `FIGURES`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from depthmup_flax.report import optimum as opt
from depthmup_flax.report import style
from depthmup_flax.report.loss_surfaces import Surface
from depthmup_flax.report.style import Color
from depthmup_flax.report.transfer import Analysis, Row, SizeAxis, Valley, Variant, log_interval, lowest_losses
from depthmup_flax.storage.records import TRAIN

_SIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}  # of a legend: right of its panel


@dataclasses.dataclass(frozen=True)
class Panel:
    """One variant's rows along one size axis, ascending, with their sizes and colors."""

    axes: Axes
    axis: SizeAxis
    variant: Variant
    rows: list[tuple[Row, int, Color]]

    def remark(self, remarks: Sequence[str]) -> None:
        """Writes remarks on single sizes, such as ``64 not run``, into the upper right corner."""
        if remarks:
            place: dict[str, Any] = {"transform": self.axes.transAxes, "ha": "right", "va": "top"}
            self.axes.text(0.97, 0.97, f"{self.axis.name} {', '.join(remarks)}", fontsize=8, wrap=True, **place)


def _panels(analysis: Analysis, title: str, ylabel: str, marks: Sequence[Line2D] = ()) -> tuple[Figure, list[Panel]]:
    """A panel per size axis (from top to bottom) and variant; ``marks`` join the first legend."""
    columns = min(len(analysis.variants), style.COLUMNS)
    rows_each = math.ceil(len(analysis.variants) / columns)
    figure, grid = style.canvas(rows_each * len(analysis.axes), columns, sharey=True)
    figure.suptitle(title)
    panels = []
    for axis, places in zip(analysis.axes, grid.reshape(len(analysis.axes), -1), strict=True):
        palette = style.colors(axis.sizes)
        style.hide_unused(places[len(analysis.variants) :])
        for variant, axes in zip(analysis.variants, places, strict=False):
            sized = [(row, row.curve.size(axis.name)) for row in axis.rows(variant.rows)]
            panels.append(Panel(axes, axis, variant, [(row, size, palette[size]) for row, size in sized]))
            axes.set_title(_title(variant.name))
        for axes in places[::columns]:
            axes.set_ylabel(f"{ylabel}\n({axis.other} {axis.fixed})")
        sizes = [Line2D([], [], color=c, marker="o", markersize=3, label=str(n)) for n, c in palette.items()]
        handles = [*sizes, *(marks if axis is analysis.axes[0] else ())]
        places[columns - 1].legend(handles=handles, title=axis.name, **_SIDE)
    return figure, panels


def _title(name: str) -> str:
    """Long names are broken at commas."""
    name = name if len(name) <= 100 else f"{name[:97]}..."
    return name if len(name) < 40 else name.replace(", ", ",\n")


def _seeds(analysis: Analysis) -> str:
    """What lines and shades show."""
    seeds = sorted({len(row.curve.seeds) for row in analysis.rows})
    counts = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return "one seed (n = 1)" if seeds == [1] else f"mean ± standard deviation of n = {counts} seeds"


def _mean_and_spread(axes: Axes, x: np.ndarray, losses: np.ndarray, color: Color, top: float) -> None:
    """A line through the means of losses (S, N), shaded by one standard deviation where the mean is below ``top``."""
    means = losses.mean(0)
    axes.plot(x, means, color=color, linewidth=1.5, marker="o", markersize=2.8)
    if len(losses) > 1:
        spread = np.where(means > top, np.nan, losses.std(0, ddof=1))
        axes.fill_between(x, means - spread, means + spread, color=color, alpha=0.18, linewidth=0)


def draw_transfer(analysis: Analysis) -> Figure:
    """Loss against x, a line per size, the optimum marked."""
    scale, rows = analysis.scale, [row for axis in analysis.axes for row in axis.rows(analysis.rows)]
    low, top, is_log = loss_limits(rows)
    best = f", each point at its best {analysis.other.name}" if analysis.other else ""
    title = f"{analysis.loss_name.capitalize()} against {scale.name}{best}\n{_seeds(analysis)}"
    looks: dict[str, dict[str, Any]] = {
        "optimum": {"marker": "*", "markersize": 11, "markeredgecolor": "black"},
        "of the base": {"color": "0.45", "linestyle": "--"},
        "a run diverged": {"marker": "x"},
        "above the panel": {"marker": "^"},
    }
    marks = [Line2D([], [], label=label, **{"color": "0.3", "linestyle": "", **look}) for label, look in looks.items()]
    figure, panels = _panels(analysis, title, analysis.loss_name, marks)
    strip = 0.03 * max(len(axis.sizes) for axis in analysis.axes)  # of the panel, for marks above the curves
    share, u = 1 / (1 - strip), scale.coordinate(scale.values)
    margin = 0.4 * _grid_step(u)
    for panel in panels:
        axes = panel.axes
        if is_log:
            style.log_y(axes)
        if panel.variant.base.optimum:
            axes.axvline(panel.variant.base.optimum.at.value, color="0.45", linestyle="--", linewidth=1.0)
        for place, (row, _, color) in enumerate(panel.rows):
            curve = row.curve
            _mean_and_spread(axes, scale.coordinate(curve.x), curve.losses, color, top)
            means = curve.losses.mean(0)
            for mark, where in (("x", curve.diverged > 0), ("^", np.isfinite(means) & (means > top))):
                at, line = scale.coordinate(curve.x[where]), 0.98 - 0.03 * place
                height = np.full(len(at), line)
                axes.plot(at, height, mark, color=color, markersize=4.5, transform=axes.get_xaxis_transform())
            if row.optimum and row.trains:
                fill = color if row.bracketed else "white"  # hollow at the edge of the grid
                star: dict[str, Any] = {
                    "markersize": 14,
                    "markerfacecolor": fill,
                    "markeredgecolor": "black",
                    "zorder": 5,
                }
                axes.plot(row.optimum.at.value, row.optimum.loss.value, "*", **star)
        axes.set_ylim(low, low * (top / low) ** share if is_log else low + (top - low) * share)
        axes.set_xlim(u[0] - margin, u[-1] + margin)
        style.hyperparameter_axis(axes.xaxis, scale)
    return figure


def _grid_step(coordinates: np.ndarray) -> float:
    return float(np.diff(coordinates).min()) if len(coordinates) > 1 else 1.0


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
    is_log = bool(best.min() > 0 and top > 20 * best.min())
    low = best.min() / 1.3 if is_log else best.min() - 0.08 * (top - best.min())
    return float(low), float(top), is_log


def draw_optima(analysis: Analysis) -> Figure:
    """The optimum against size, a line per variant; hollow where it is at the edge of the grid."""
    scale, best = analysis.scale, [row.optimum.at for row in analysis.rows if row.trains and row.optimum]
    ends = [end for one in best for end in one.interval or ()]
    figure, grid = style.canvas(1, len(analysis.axes), width=5.6, height=4.2)
    interval = "bars: 95 % interval over seeds" if ends else "no intervals"
    figure.suptitle(f"Best {scale.name} against size\n{interval}; hollow: edge of the grid")
    u = scale.coordinate(scale.values)
    margin = _grid_step(u)
    for axis, axes in zip(analysis.axes, grid[0], strict=True):
        slopes = []
        for k, variant in enumerate(analysis.variants):
            rows = [row for row in axis.rows(variant.rows) if row.trains and row.optimum]
            at = [row.optimum.at for row in rows if row.optimum]
            nudge = 2 ** (0.05 * (k - (len(analysis.variants) - 1) / 2))  # keeps the bars at one size apart
            sizes = np.array([row.curve.size(axis.name) for row in rows]) * nudge
            look: dict[str, Any] = {"color": f"C{k}", "markersize": 6, "marker": "osD^vP"[k % 6]}
            values, errors = [one.value for one in at], [one.half_width or 0.0 for one in at]
            axes.errorbar(sizes, values, errors, linewidth=1.4, capsize=3, label=variant.name, **look)
            hollow = [i for i, row in enumerate(rows) if not row.bracketed]
            edges = [values[i] for i in hollow]
            axes.plot(sizes[hollow], edges, linestyle="", markerfacecolor="white", zorder=3, **look)
            if (slope := variant.slopes.get(axis.name)) and slope.estimate:
                power = style.format_slope(slope.estimate.value, slope.estimate.half_width)
                slopes.append(f"{variant.name} {power}".lstrip())
        style.size_ticks(axes, axis.sizes, axis.name)
        axes.set_ylim(min([u[0] - margin, *ends]) - 0.1 * margin, max([u[-1] + margin, *ends]) + 0.1 * margin)
        style.hyperparameter_axis(axes.yaxis, scale)
        exponents = f"\nexponent of {axis.name}: " + ";\n".join(slopes) if slopes else ""
        axes.set_title(f"{axis.other} {axis.fixed}{exponents}")
    if any(variant.name for variant in analysis.variants):
        grid[0, -1].legend(**_SIDE)
    return figure


def draw_curves(analysis: Analysis) -> Figure:
    """Training loss over steps, every size at the x of the grid that is best at the base."""
    x = analysis.scale.name
    title = f"Training loss over time, every size at the base's best {x} of the grid\n{_seeds(analysis)}"
    figure, panels = _panels(analysis, title, "training loss")
    shown = [
        row.curve.slices[:, index].ravel()
        for variant in analysis.variants
        for row in variant.rows
        if (index := row.curve.index(variant.transferred)) is not None and not row.curve.diverged[index] and row.trains
    ]
    losses = np.concatenate(shown) if shown else np.array([0.0, 1.0])
    low, high = float(np.nanmin(losses)), float(np.nanmax(losses))
    is_log, margin = low > 0 and high > 20 * low, 0.05 * (high - low) or 1.0
    low, high = (low / 1.2, high * 1.2) if is_log else (low - margin, high + margin)
    for panel in panels:
        transferred, remarks = panel.variant.transferred, []
        for row, size, color in panel.rows:
            index = row.curve.index(transferred)
            if index is None:
                remarks.append(f"{size} not run")
                continue
            slices = row.curve.slices[:, index]  # (S, T)
            _mean_and_spread(panel.axes, row.curve.slice_ends, slices, color, high)
            if row.curve.diverged[index]:
                remarks.append(f"{size} diverged")
            elif np.nanmin(slices.mean(0)) > high:
                remarks.append(f"{size} above the panel")
        if is_log:
            style.log_y(panel.axes)
        panel.axes.set_ylim(low, high)
        panel.remark(remarks)
        at = "" if transferred is None else f"\nbest {x} of the grid: {style.value_label(transferred, analysis.scale)}"
        panel.axes.set_title(f"{_title(panel.variant.name)}{at}".lstrip())
        _step_axis(panel.axes)
    return figure


def draw_over_time(analysis: Analysis) -> Figure:
    """The optimum of each size after each time slice."""
    scale = analysis.scale
    figure, panels = _panels(analysis, f"Best {scale.name} after each slice of training time", scale.name)
    u = scale.coordinate(scale.values)
    for panel in panels:
        for row, _, color in panel.rows:
            if row.trains:  # else its optimum is meaningless
                # Points that diverge later cannot be chosen, so they are excluded from the start.
                means = np.where(row.curve.diverged[:, None] > 0, np.nan, row.curve.slices.mean(0))  # (X, T)
                best = opt.vertices(scale.coordinate(row.curve.x), means.T)
                panel.axes.plot(row.curve.slice_ends, best, color=color, linewidth=1.5, marker="o", markersize=3)
        panel.remark([f"{size} does not train" for row, size, _ in panel.rows if not row.trains])
        panel.axes.set_ylim(u[0] - 0.5, u[-1] + 0.5)
        label = panel.axes.get_ylabel()
        style.hyperparameter_axis(panel.axes.yaxis, scale)
        panel.axes.set_ylabel(label)
        _step_axis(panel.axes)
    return figure


def _step_axis(axes: Axes) -> None:
    axes.set_xlabel("step")
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", integer=True)


def draw_heatmap(analysis: Analysis) -> Figure:
    """Mean loss over x and y: a panel per variant and size, with the optimum and the optimal sublevel set."""
    x, y = analysis.scale, analysis.other
    assert y is not None
    columns = min(len(analysis.surfaces), style.COLUMNS)
    figure, grid = style.canvas(math.ceil(len(analysis.surfaces) / columns), columns, width=4.2, height=3.9)
    figure.suptitle(
        f"{analysis.loss_name.capitalize()} over {x.name} and {y.name}\n"
        "mean over seeds; star: optimum; gray cross: a run diverged\n"
        "red dots: losses up to min + 0.1 (median - min), and the slope along them with its 95 % interval"
    )
    means = np.concatenate([surface.means().ravel() for surface in analysis.surfaces])
    finite = means[np.isfinite(means)]
    limits = {"vmin": finite.min(), "vmax": np.quantile(finite, 0.8)} if len(finite) else {}
    style.hide_unused(grid.flat[len(analysis.surfaces) :])
    for surface, valley, axes in zip(analysis.surfaces, analysis.valleys, grid.flat, strict=False):
        image = _heat(axes, analysis, surface, limits)
        axes.set_title(
            f"{_title(surface.variant)}\nwidth {surface.width}, depth {surface.depth}: {_direction(valley)}".lstrip()
        )
    figure.colorbar(image, ax=figure.axes, label=analysis.loss_name, extend="max", shrink=0.8)
    return figure


def _heat(axes: Axes, analysis: Analysis, surface: Surface, limits: dict[str, float]) -> Any:
    x, y = analysis.scale, analysis.other
    assert y is not None
    u, v, means = x.coordinate(surface.x), y.coordinate(surface.y), surface.means()
    look: dict[str, Any] = {"cmap": "viridis_r", "rasterized": True, "shading": "nearest", **limits}
    axes.grid(visible=False)
    image = axes.pcolormesh(u, v, np.ma.masked_invalid(means), **look)
    axes.set_facecolor("0.9")
    rows, columns = np.nonzero(surface.diverged)
    axes.plot(u[columns], v[rows], "x", color="0.55", markersize=4)
    inside = np.nonzero(opt.sublevel_set(means))
    axes.plot(u[inside[1]], v[inside[0]], ".", color="tab:red", markersize=7)
    if np.isfinite(means).any():
        row, column = divmod(int(np.nanargmin(means)), len(u))
        axes.plot(u[column], v[row], "*", color="white", markersize=14, markeredgecolor="black")
    style.hyperparameter_axis(axes.xaxis, x)
    style.hyperparameter_axis(axes.yaxis, y)
    return image


def _direction(valley: Valley | None) -> str:
    if valley is None:
        return "no clear direction"
    slope, ends = valley
    if abs(slope) > 20:
        return "upright"
    return f"slope {slope:.2f}" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")


def draw_parameters(analysis: Analysis) -> Figure:
    """Lowest loss against parameter count: lines of equal depth and of equal width, if any has two points."""
    lowest = lowest_losses(analysis.rows)
    lines = {name: [(curve.variant, curve.size(name)) for curve, _ in lowest] for name in ("depth", "width")}
    names = [name for name, line_of in lines.items() if len(set(line_of)) < len(line_of)] or ["depth"]
    bars = "; bars: 95 % interval over seeds" if any(len(curve.seeds) > 1 for curve, _ in lowest) else ""
    figure, grid = style.canvas(len(analysis.variants), len(names), width=5.4, height=3.9, sharey=True)
    figure.suptitle(f"Lowest loss over {analysis.scale.name} against parameters\nlines: loss = c / parameters^b{bars}")
    ends = [end for _, loss in lowest for end in log_interval(loss)] or [1.0]
    low, high = min(ends), max(ends)
    for variant, places in zip(analysis.variants, grid, strict=True):
        places[0].set_ylabel(f"lowest {analysis.loss_name}")
        for name, axes in zip(names, places, strict=True):
            axes.set_xscale("log")
            axes.set_yscale("log")
            _power_lines(axes, variant, name)
            axes.set_ylim(low / 1.1 * (low / high) ** 0.1, high * 1.1 * (high / low) ** 0.1)
            style.plain_numbers(axes.yaxis, (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if high < 10 * low else (1, 2, 5))
            style.plain_numbers(axes.xaxis, (1, 3))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.set_title(", ".join(filter(None, (_title(variant.name), f"equal {name}"))))
            axes.set_xlabel("parameters")
            axes.legend(title=name, **_SIDE)
    return figure


def _power_lines(axes: Axes, variant: Variant, name: str) -> None:
    """The points and the fitted line of each size."""
    lowest = lowest_losses(variant.rows)
    for size, color in style.colors({curve.size(name) for curve, _ in lowest}).items():
        line = [(curve.parameters, e.value, *log_interval(e)) for curve, e in lowest if curve.size(name) == size]
        counts, losses, lower, upper = np.array(sorted(line), np.float64).T
        bars = losses - lower, upper - losses
        axes.errorbar(counts, losses, bars, linestyle="", marker="o", markersize=4, color=color, capsize=2)
        label, law = str(size), variant.power_laws[name].get(size)
        if law:
            losses = np.exp(np.log(losses).mean() + law.value * np.log(counts).mean()) * counts**-law.value
            label = f"{size}: b = {style.format_slope(law.value, law.half_width, 3)}"
        axes.plot(counts, losses, "-" if law else ":", color=color, label=label, linewidth=1.3)


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure that a report may have. In name and caption, ``{x}`` stands for the analysis's hyperparameter."""

    name: str  # of its files, without suffix
    draw: Callable[[Analysis], Figure]
    shown: Callable[[Analysis], bool]  # whether an analysis has enough data for it
    caption: str  # how to read it
    second: bool = False  # whether it shows the analysis along the second hyperparameter


_several_values = lambda analysis: len(analysis.scale.values) > 1
_TRANSFER = (
    "Loss against {x}, a line per size. Stars mark optima, the dashed line the base's. "
    "The {x} transfers if the stars lie on the dashed line and larger networks have a lower loss."
)

FIGURES = (  # the first that an analysis has is the page's main one
    Drawing("transfer", draw_transfer, _several_values, _TRANSFER),
    Drawing("transfer_{x}", draw_transfer, lambda analysis: True, _TRANSFER, second=True),
    Drawing(
        "optima",
        draw_optima,
        lambda analysis: _several_values(analysis) and any(len(axis.sizes) > 1 for axis in analysis.axes),
        "The best {x} of each size. A flat line means transfer; the slope is the exponent of size.",
    ),
    Drawing(
        "curves",
        draw_curves,
        lambda analysis: analysis.loss == TRAIN,
        "Every size trained with the grid's value nearest to the base's best {x}. With transfer, the curves coincide "
        "early in training and larger networks end lower.",
    ),
    Drawing(
        "over_time",
        draw_over_time,
        lambda analysis: _several_values(analysis) and analysis.loss == TRAIN,
        "The best {x} if training had stopped earlier. A flat line means that it is settled early.",
    ),
    Drawing(
        "heatmap",
        draw_heatmap,
        lambda analysis: analysis.other is not None and _several_values(analysis),
        "At the red dots the loss is close to the lowest, so one hyperparameter can be traded for the other along "
        "them; their slope is the rate of exchange.",
    ),
    Drawing(
        "parameters",
        draw_parameters,
        lambda analysis: len({row.curve.parameters for row in analysis.rows}) >= 3,
        "The lowest loss of each size against its parameter count. Steeper lines gain more per parameter.",
    ),
)


def drawn(analysis: Analysis, second: Analysis | None) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Caption and files of each figure of an analysis, and of the one along its second axis."""
    for figure in FIGURES:
        of = second if figure.second else analysis
        if of is not None and figure.shown(of):
            with matplotlib.rc_context(style.STYLE):
                files = style.pictures(figure.draw(of), figure.name.format(x=of.scale.name))
            yield figure.caption.format(x=of.scale.name), files
