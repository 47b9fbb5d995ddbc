"""Figures of two hyperparameters at once, and of loss against parameter count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, ScalarFormatter

from depthmup_flax.report import optimum as opt
from depthmup_flax.report import style
from depthmup_flax.report.loss_surfaces import Curve, Scale, Surface
from depthmup_flax.report.points import point_text, size_text, surface_points
from depthmup_flax.report.sheet import Frame, Sheet
from depthmup_flax.report.transfer import Analysis, Valley, log_interval, lowest_losses


def draw_heatmap(analysis: Analysis, sheet: Sheet) -> None:
    """Mean loss over x and y: a panel per variant and size, with the optimum and the optimal sublevel set."""
    x, y = analysis.scale, analysis.other
    assert y is not None
    over = f"{analysis.loss_name.capitalize()} over {x.name} and {y.name}"
    count = len(analysis.surfaces)
    (band,) = sheet.add_bands([""], count, min(count, style.COLUMNS), width=4.2, height=3.9, sharey=False)
    sheet.set_title(
        f"{over}\n"
        "mean over seeds; star: optimum; gray cross: a run diverged\n"
        "red: losses up to min + 0.1 (median - min), and the slope along them with its 95 % interval"
    )
    means = np.concatenate([surface.means().ravel() for surface in analysis.surfaces])
    finite = means[np.isfinite(means)]
    limits = {"vmin": finite.min(), "vmax": np.quantile(finite, 0.8)} if len(finite) else {}
    for surface, valley, frame in zip(analysis.surfaces, analysis.valleys, band.frames, strict=True):
        image = _heat(frame, analysis, y, surface, limits)
        name = f"{style.title_of(surface.variant)}\n" if surface.variant else ""
        sheet.set_heading(frame, f"{name}width {surface.width}, depth {surface.depth}: {_direction(valley)}")
        frame.summary = f"{over}: no mean is known."
        if lowest := _lowest(surface):
            at = f"{x.name} {surface.x[lowest[1]]:.4g} and {y.name} {surface.y[lowest[0]]:.4g}"
            frame.summary = f"{over}; the lowest is {surface.means()[lowest]:.4g} at {at}."
    sheet.add_color_bar(image, analysis.loss_name)


def _lowest(surface: Surface) -> tuple[int, int] | None:
    """Row and column of the lowest mean; ``None`` if no mean is known."""
    means = surface.means()
    return divmod(int(np.nanargmin(means)), len(surface.x)) if np.isfinite(means).any() else None


def _heat(frame: Frame, analysis: Analysis, y: Scale, surface: Surface, limits: dict[str, float]) -> ScalarMappable:
    x, panel = analysis.scale, frame.axes
    u, v, means = x.coordinate(surface.x), y.coordinate(surface.y), surface.means()
    look: dict[str, Any] = {"cmap": "viridis_r", "rasterized": True, **limits}
    image = panel.pcolormesh(_edges(u), _edges(v), np.ma.masked_invalid(means), **look)
    panel.set_facecolor("0.9")
    rows, columns = np.nonzero(surface.diverged)
    panel.plot(u[columns], v[rows], "x", color="0.55", markersize=4)
    _outline(panel, _edges(u), _edges(v), opt.sublevel_set(means))
    if lowest := _lowest(surface):
        panel.plot(u[lowest[1]], v[lowest[0]], "*", color="white", markersize=14, markeredgecolor="black")
    for point in surface_points(surface, analysis):
        frame.value(x.coordinate(point.x), y.coordinate(point.second), point_text(point, analysis))
    style.hyperparameter_axis(panel.xaxis, x)
    style.hyperparameter_axis(panel.yaxis, y)
    return image


def _direction(valley: Valley | None) -> str:
    if valley is None:
        return "no clear direction"
    slope, ends = valley
    if abs(slope) > 20:
        return "upright"
    return f"slope {slope:.2f}" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")


def _edges(coordinates: np.ndarray) -> np.ndarray:
    """(N,) centers -> (N + 1,) borders of cells."""
    if len(coordinates) == 1:
        return coordinates[0] + np.array([-0.5, 0.5])
    middle = (coordinates[1:] + coordinates[:-1]) / 2
    return np.concatenate([[2 * coordinates[0] - middle[0]], middle, [2 * coordinates[-1] - middle[-1]]])


def _outline(panel: Axes, u: np.ndarray, v: np.ndarray, inside: np.ndarray) -> None:
    """Red lines around the cells of a set; ``u`` and ``v`` are the cells' borders."""
    padded = np.pad(inside, 1)
    look: dict[str, Any] = {"color": "tab:red", "linewidth": 1.6, "capstyle": "round"}
    for i, j in np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1]):
        panel.vlines(u[j], v[i], v[i + 1], **look)
    for i, j in np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1]):
        panel.hlines(v[i], u[j], u[j + 1], **look)


def draw_parameters(analysis: Analysis, sheet: Sheet) -> None:
    """Lowest loss against parameter count: lines of equal depth and of equal width, if any has two points."""
    lowest = lowest_losses(analysis.rows)
    lines = {name: [(curve.variant, curve.size(name)) for curve, _ in lowest] for name in ("depth", "width")}
    names = [name for name, line_of in lines.items() if len(set(line_of)) < len(line_of)] or ["depth"]
    # A band per panel: each has exponents of its own in its legend.
    kinds = [(variant, name) for variant in analysis.variants for name in names]
    headings = [", ".join(filter(None, (variant.name, f"equal {name}"))) for variant, name in kinds]
    bars = "; bars: 95 % interval over seeds" if any(len(curve.seeds) > 1 for curve, _ in lowest) else ""
    bands = sheet.add_bands(headings, 1, 1, per_row=len(names), width=5.4, height=3.9)
    sheet.set_title(f"Lowest loss over {analysis.scale.name} against parameters\nlines: loss = c / parameters^b{bars}")
    ends = [end for _, loss in lowest for end in log_interval(loss)] or [1.0]
    for (variant, name), band in zip(kinds, bands, strict=True):
        (frame,) = band.frames
        handles = _power_lines(frame, lowest_losses(variant.rows), name, variant.power_laws[name])
        if not sheet.apart:
            sheet.set_heading(frame, band.heading)
        _log_log(frame.axes, min(ends), max(ends))
        sheet.add_legend(band, 0, name, handles, fontsize=7, title_fontsize=8)
        frame.label_y(f"lowest {analysis.loss_name}")
        line = sorted((curve.parameters, loss.value) for curve, loss in lowest_losses(variant.rows))
        span = f": {line[0][1]:.4g} at {line[0][0]:,} to {line[-1][1]:.4g} at {line[-1][0]:,}" if line else ""
        frame.summary = f"Lowest {analysis.loss_name} against parameters, lines of {band.heading}{span}."


def _log_log(panel: Axes, low: float, high: float) -> None:
    """Plain numbers at a few ticks; ``low`` and ``high`` are inside the panel."""
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_ylim(low / 1.1 * (low / high) ** 0.1, high * 1.1 * (high / low) ** 0.1)
    subs = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if high < 10 * low else (1, 2, 5)
    panel.yaxis.set_major_locator(LogLocator(subs=subs))
    panel.yaxis.set_major_formatter(ScalarFormatter())
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_minor_formatter(NullFormatter())
    panel.set_xlabel("parameters")
    panel.grid(alpha=0.25, which="both")


def _power_lines(
    frame: Frame, lowest: Sequence[tuple[Curve, opt.Estimate]], name: str, laws: dict[int, opt.Estimate]
) -> list[Line2D]:
    """Draws the points and lines of each size; returns the legend's entries."""
    handles, panel = [], frame.axes
    for size, color in style.colors({curve.size(name) for curve, _ in lowest}).items():
        line = [(curve.parameters, e.value, *log_interval(e)) for curve, e in lowest if curve.size(name) == size]
        counts, losses, lower, upper = np.array(sorted(line), np.float64).T
        law = laws.get(size)
        label = f"{size}: b = {style.format_slope(law.value, law.half_width, 3)}" if law else str(size)
        bars = losses - lower, upper - losses
        panel.errorbar(counts, losses, bars, linestyle="", marker="o", markersize=4, color=color, capsize=2)
        if law:
            middle = np.exp(np.log(losses).mean() + law.value * np.log(counts).mean())
            losses = middle * counts**-law.value
        look: dict[str, Any] = {"linewidth": 1.3} if law else {"linewidth": 0.8, "linestyle": ":"}
        handles += panel.plot(counts, losses, color=color, label=label, **look)
    for curve, loss in lowest:
        low, high = log_interval(loss)
        ends = f", 95 % interval {low:.4g} to {high:.4g}" if low < high else ""
        text = f"{curve.parameters:,} parameters\nlowest loss {loss.value:.5g}{ends}, n = {len(curve.seeds)}"
        frame.value(curve.parameters, loss.value, f"{size_text(curve)}\n{text}")
    return handles
