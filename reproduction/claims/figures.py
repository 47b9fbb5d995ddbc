"""Figures of the papers that a user's report does not have: two hyperparameters, parameters, training time, losses."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from depthmup_flax.report import figures, style
from depthmup_flax.report import optimum as opt
from depthmup_flax.report.curves import Curve, Scale, Surface
from depthmup_flax.report.transfer import Analysis, Row, Variant
from depthmup_flax.storage.sweep_records import TRAIN
from reproduction.claims import valleys
from reproduction.figure_files import format_slope, save

Valley = tuple[float, tuple[float, float] | None]  # slope and its 95 % interval


def save_figures(analysis: Analysis, out: pathlib.Path) -> None:
    """Writes ``curves``, ``over_time``, ``heatmap`` and ``parameters``, where an analysis has enough data."""
    several = len(analysis.scale.values) > 1
    with matplotlib.rc_context(style.STYLE):
        if analysis.loss == TRAIN:
            save(draw_curves(analysis), out, "curves")
        if several and analysis.loss == TRAIN:
            save(draw_over_time(analysis), out, "over_time")
        if several and analysis.other is not None:
            save(draw_heatmap(analysis), out, "heatmap")
        if len({row.curve.parameters for row in analysis.rows}) >= 3:
            save(draw_parameters(analysis), out, "parameters")


def lowest_losses(rows: Sequence[Row]) -> list[tuple[Curve, opt.Estimate]]:
    """Curves and lowest losses of the rows whose lowest loss has a meaningful logarithm."""
    return [(r.curve, r.optimum.loss) for r in rows if r.trains and r.optimum and r.optimum.loss.value > 0]


def log_interval(loss: opt.Estimate) -> tuple[float, float]:
    """The 95 % interval of a loss from that of its logarithm, which is what a log axis shows; the loss if unknown."""
    logs = opt.Estimate(math.log(loss.value), _minus_logs(loss.draws), loss.seeds)
    factor = math.exp(logs.half_width or 0.0)
    return loss.value / factor, loss.value * factor


def power_laws(rows: Sequence[Row]) -> dict[str, dict[int, opt.Estimate]]:
    """Exponents b of ``lowest loss = c * parameters^-b``, for lines of equal depth and of equal width.

    Least squares of log loss on log parameters, refitted in every draw; lines of at least three sizes.
    """
    laws: dict[str, dict[int, opt.Estimate]] = {"depth": {}, "width": {}}
    for name, of_size in laws.items():
        for size in sorted({row.curve.size(name) for row in rows}):
            line = [(curve, loss) for curve, loss in lowest_losses(rows) if curve.size(name) == size]
            logs = [opt.Estimate(-math.log(loss.value), _minus_logs(loss.draws), loss.seeds) for _, loss in line]
            if fit := opt.slope([math.log(curve.parameters) for curve, _ in line], logs):
                of_size[size] = fit
    return laws


def _minus_logs(draws: np.ndarray | None) -> np.ndarray | None:
    """``None`` if a draw is not positive: losses may be negative."""
    return -np.log(draws) if draws is not None and (draws > 0).all() else None


def sublevel_slope(surface: Surface, x: Scale, y: Scale) -> Valley | None:
    """Slope of y against x along the optimal sublevel set and its 95 % interval, from `valleys.valley_angle`.

    ``None`` if the set has no direction; no interval for one seed, or where it reaches the vertical.
    """
    angle = valleys.valley_angle(x.coordinate(surface.x), y.coordinate(surface.y), surface.losses)
    if angle is None:
        return None
    ends = angle.interval
    known = ends is not None and -math.pi / 2 < ends[0] and ends[1] < math.pi / 2
    return math.tan(angle.value), (math.tan(ends[0]), math.tan(ends[1])) if known and ends else None


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
    means = np.concatenate([surface.losses.mean(0).ravel() for surface in analysis.surfaces])
    finite = means[np.isfinite(means)]
    limits = {"vmin": finite.min(), "vmax": np.quantile(finite, 0.8)} if len(finite) else {}
    for unused in grid.flat[len(analysis.surfaces) :]:
        unused.set_visible(False)
    for surface, axes in zip(analysis.surfaces, grid.flat, strict=False):
        image = _heat(axes, analysis, surface, limits)
        size = f"width {surface.width}, depth {surface.depth}"
        direction = _direction(sublevel_slope(surface, x, y))
        axes.set_title(f"{figures.title_of(surface.variant)}\n{size}: {direction}".lstrip())
    figure.colorbar(image, ax=figure.axes, label=analysis.loss_name, extend="max", shrink=0.8)
    return figure


def _heat(axes: Axes, analysis: Analysis, surface: Surface, limits: dict[str, float]) -> Any:
    x, y = analysis.scale, analysis.other
    assert y is not None
    u, v, means = x.coordinate(surface.x), y.coordinate(surface.y), surface.losses.mean(0)
    look: dict[str, Any] = {"cmap": "viridis_r", "rasterized": True, "shading": "nearest", **limits}
    axes.grid(visible=False)
    image = axes.pcolormesh(u, v, np.ma.masked_invalid(means), **look)
    axes.set_facecolor("0.9")
    rows, columns = np.nonzero(surface.diverged)
    axes.plot(u[columns], v[rows], "x", color="0.55", markersize=4)
    inside = np.nonzero(valleys.sublevel_set(means))
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
            axes.set_title(", ".join(filter(None, (figures.title_of(variant.name), f"equal {name}"))))
            axes.set_xlabel("parameters")
            axes.legend(title=name, **figures.BESIDE)
    return figure


def _power_lines(axes: Axes, variant: Variant, name: str) -> None:
    """The points and the fitted line of each size."""
    lowest, laws = lowest_losses(variant.rows), power_laws(variant.rows)[name]
    for size, color in style.colors({curve.size(name) for curve, _ in lowest}).items():
        line = [(curve.parameters, e.value, *log_interval(e)) for curve, e in lowest if curve.size(name) == size]
        counts, losses, lower, upper = np.array(sorted(line), np.float64).T
        bars = losses - lower, upper - losses
        axes.errorbar(counts, losses, bars, linestyle="", marker="o", markersize=4, color=color, capsize=2)
        label, law = str(size), laws.get(size)
        if law:
            losses = np.exp(np.log(losses).mean() + law.value * np.log(counts).mean()) * counts**-law.value
            label = f"{size}: b = {format_slope(law.value, law.half_width, 3)}"
        axes.plot(counts, losses, "-" if law else ":", color=color, label=label, linewidth=1.3)


def draw_over_time(analysis: Analysis) -> Figure:
    """The optimum of each size after each time slice."""
    scale = analysis.scale
    figure, panels = figures.panel_grid(analysis, f"Best {scale.name} after each slice of training time", scale.name)
    u = scale.coordinate(scale.values)
    for panel in panels:
        for row, _, color in panel.rows:
            if row.trains:  # else its optimum is meaningless
                # Points that diverge later cannot be chosen, so they are excluded from the start.
                means = np.where(row.curve.diverged[:, None] > 0, np.nan, row.curve.slices.mean(0))  # (X, T)
                best = opt.vertices(scale.coordinate(row.curve.x), means.T)
                panel.axes.plot(row.curve.slice_ends, best, color=color, linewidth=1.5, marker="o", markersize=3)
        _remark(panel, [f"{size} does not train" for row, size, _ in panel.rows if not row.trains])
        panel.axes.set_ylim(u[0] - 0.5, u[-1] + 0.5)
        label = panel.axes.get_ylabel()
        style.hyperparameter_axis(panel.axes.yaxis, scale)
        panel.axes.set_ylabel(label)
        _step_axis(panel.axes)
    return figure


def draw_curves(analysis: Analysis) -> Figure:
    """Training loss over steps, every size at the x of the grid that is best at the base."""
    x = analysis.scale.name
    title = f"Training loss over time, every size at the base's best {x} of the grid\n{figures.seeds_of(analysis)}"
    figure, panels = figures.panel_grid(analysis, title, "training loss")
    shown = [
        row.curve.slices[:, index].ravel()
        for variant in analysis.variants
        for row in variant.rows
        if row.trains
        and (index := _index(row.curve, variant.transferred)) is not None
        and not row.curve.diverged[index]
        and not row.curve.diverged[index]
        and row.trains
    ]
    losses = np.concatenate(shown) if shown else np.array([0.0, 1.0])
    low, high = float(np.nanmin(losses)), float(np.nanmax(losses))
    is_log, margin = low > 0 and high > 20 * low, 0.05 * (high - low) or 1.0
    low, high = (low / 1.2, high * 1.2) if is_log else (low - margin, high + margin)
    for panel in panels:
        transferred, remarks = panel.variant.transferred, []
        for row, size, color in panel.rows:
            index = _index(row.curve, transferred)
            if index is None:
                remarks.append(f"{size} not run")
                continue
            slices = row.curve.slices[:, index]  # (S, T)
            figures.mean_and_spread(panel.axes, row.curve.slice_ends, slices, color, high)
            if row.curve.diverged[index]:
                remarks.append(f"{size} diverged")
            elif np.nanmin(slices.mean(0)) > high:
                remarks.append(f"{size} above the panel")
        if is_log:
            style.log_y(panel.axes)
        panel.axes.set_ylim(low, high)
        _remark(panel, remarks)
        at = "" if transferred is None else f"\nbest {x} of the grid: {transferred:.3g}"
        panel.axes.set_title(f"{figures.title_of(panel.variant.name)}{at}".lstrip())
        _step_axis(panel.axes)
    return figure


def _step_axis(axes: Axes) -> None:
    """An axis of training steps."""
    axes.set_xlabel("step")
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", integer=True)


def _index(curve: Curve, x: float | None) -> int | None:
    """The index of a grid value; ``None`` if it was not run."""
    return curve.x.tolist().index(x) if x in curve.x.tolist() else None


def _remark(panel: figures.Panel, remarks: Sequence[str]) -> None:
    """Writes remarks on single sizes, such as ``64 not run``, into the upper right corner."""
    if remarks:
        place: dict[str, Any] = {"transform": panel.axes.transAxes, "ha": "right", "va": "top"}
        panel.axes.text(0.97, 0.97, f"{panel.axis.name} {', '.join(remarks)}", fontsize=8, wrap=True, **place)
