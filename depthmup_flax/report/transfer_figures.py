"""Figures of transfer: loss against x, and the optimum against size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from depthmup_flax.report import style
from depthmup_flax.report.loss_surfaces import Scale
from depthmup_flax.report.points import curve_points, point_text, size_text
from depthmup_flax.report.sheet import Frame, Sheet
from depthmup_flax.report.style import Color
from depthmup_flax.report.transfer import Analysis, Row, SizeAxis, Variant
from depthmup_flax.report.variant_panels import Panel, variant_panels


def draw_transfer(analysis: Analysis, sheet: Sheet) -> None:
    """Loss against x: a panel per variant, a row per size that varies, a line per size, the optimum marked."""
    scale, rows = analysis.scale, [row for axis in analysis.axes for row in axis.rows(analysis.rows)]
    best = f", each point at its best {analysis.other.name}" if analysis.other else ""
    title = f"{analysis.loss_name.capitalize()} against {scale.name}{best}\n{style.spread_sentence(analysis)}"
    low, top, log_y = loss_limits(rows)
    clipped = any(_clipped(row, top).any() for row in rows)
    diverged = any(row.curve.diverged.any() for row in rows)
    strip = 0.05 + 0.028 * max(len(axis.sizes) for axis in analysis.axes) if diverged or clipped else 0.0
    coordinates, margin = scale.coordinate(scale.values), 0.4 * _grid_step(scale)
    for panel in variant_panels(analysis, sheet, title, _marks(diverged, clipped)):
        axes = panel.axes
        axes.set_yscale("log" if log_y else "linear")
        if panel.variant.base.optimum:
            axes.axvline(panel.variant.base.optimum.at.value, color="0.45", linestyle="--", linewidth=1.0, zorder=1)
        for row, _, color in panel.rows:
            _curve(panel.frame, analysis, row, color, top)
        if strip:
            _strip(panel, analysis, top, strip)
        share = 1 / (1 - strip)  # leaves room for the strip above `top`
        axes.set_ylim(low, low * (top / low) ** share if log_y else low + (top - low) * share)
        axes.set_xlim(coordinates[0] - margin, coordinates[-1] + margin)
        style.hyperparameter_axis(axes.xaxis, scale)
        panel.finish(analysis.loss_name, summary=_best_of_sizes(panel, analysis))


def _best_of_sizes(panel: Panel, analysis: Analysis) -> str:
    """What the panel shows, in a sentence for readers who do not see it."""
    scale = analysis.scale
    best = [
        f"{scale.value(row.optimum.at.value):.3g} at {panel.axis.name} {size}"
        if row.trains and row.optimum
        else f"none at {panel.axis.name} {size}"
        for row, size, _ in panel.rows
    ]
    return f"{analysis.loss_name.capitalize()} against {scale.name}. Best {scale.name}: {', '.join(best)}."


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
    log_y = bool(best.min() > 0 and top > 20 * best.min())
    low = best.min() / 1.3 if log_y else best.min() - 0.08 * (top - best.min())
    return float(low), float(top), log_y


def _grid_step(scale: Scale) -> float:
    coordinates = scale.coordinate(scale.values)
    return float(np.diff(coordinates).min()) if len(coordinates) > 1 else 1.0


def _clipped(row: Row, top: float) -> np.ndarray:
    means = row.curve.losses.mean(0)
    return np.isfinite(means) & (means > top)


def _curve(frame: Frame, analysis: Analysis, row: Row, color: Color, top: float) -> None:
    """Mean and spread, and a star at the optimum, hollow if it is at the edge of the grid."""
    scale = analysis.scale
    style.mean_and_spread(frame.axes, scale.coordinate(row.curve.x), row.curve.losses, color, top, markersize=2.8)
    for point in curve_points(row.curve, analysis):
        if point.mean is not None and point.mean <= top:
            frame.value(scale.coordinate(point.x), point.mean, point_text(point, analysis))
    if row.optimum and row.trains:
        fill = color if row.bracketed else "white"
        at = (row.optimum.at.value, row.optimum.loss.value)
        frame.axes.plot(*at, "*", markersize=14, zorder=5, markerfacecolor=fill, markeredgecolor="black")


def _strip(panel: Panel, analysis: Analysis, top: float, height: float) -> None:
    """A band over the curves with crosses where a run diverged and arrows where the mean is above ``top``.

    Each size has its own line in the band; ``height`` is a fraction of the panel.
    """
    axes, transform, scale = panel.axes, panel.axes.get_xaxis_transform(), analysis.scale
    corner, height = (0, 1 - height + 0.015), height - 0.015
    axes.add_patch(Rectangle(corner, 1, height, transform=axes.transAxes, color="0.94", zorder=3))
    for place, (row, _, color) in enumerate(panel.rows):
        line, points = 0.972 - 0.028 * place, curve_points(row.curve, analysis)
        for mark, where in (("x", row.curve.diverged > 0), ("^", _clipped(row, top))):
            u = scale.coordinate(row.curve.x[where])
            axes.plot(u, np.full(len(u), line), mark, color=color, markersize=4.5, zorder=4, transform=transform)
            for k in np.flatnonzero(where):
                panel.frame.value(scale.coordinate(points[k].x), line, point_text(points[k], analysis), transform)


def _marks(diverged: bool, clipped: bool) -> list[Line2D]:
    """Legend entries of the marks."""
    entries: list[tuple[str, dict[str, Any]]]
    entries = [("optimum", {"marker": "*", "markersize": 11, "markeredgecolor": "black"})]
    entries += [("of the base", {"color": "0.45", "linestyle": "--"})]
    entries += [("a run diverged", {"marker": "x"})] if diverged else []
    entries += [("above the panel", {"marker": "^"})] if clipped else []
    return [Line2D([], [], label=label, **{"color": "0.3", "linestyle": "", **look}) for label, look in entries]


def draw_optima(analysis: Analysis, sheet: Sheet) -> None:
    """The optimum against size, a line per variant; hollow where it is at the edge of the grid."""
    known = any(row.optimum and row.optimum.at.interval for row in analysis.rows)
    unknown = "no intervals" if any(len(row.curve.seeds) > 1 for row in analysis.rows) else "one seed: no intervals"
    interval = "bars: 95 % interval over seeds" if known else unknown
    (band,) = sheet.add_bands([""], len(analysis.axes), len(analysis.axes), width=5.6, height=4.2, sharey=False)
    sheet.set_title(f"Best {analysis.scale.name} against size\n{interval}; hollow: edge of the grid")
    best = [row.optimum.at for row in analysis.rows if row.trains and row.optimum]
    ends = [end for one in best for end in one.interval or ()]
    coordinates, margin = analysis.scale.coordinate(analysis.scale.values), _grid_step(analysis.scale)
    low, high = min([coordinates[0] - margin, *ends]), max([coordinates[-1] + margin, *ends])
    for axis, frame in zip(analysis.axes, band.frames, strict=True):
        for k, variant in enumerate(analysis.variants):
            _optima(frame, analysis.scale, axis, variant, k, len(analysis.variants))
        style.size_ticks(frame.axes, axis.sizes, axis.name)
        frame.axes.set_ylim(low - 0.1 * margin, high + 0.1 * margin)
        style.hyperparameter_axis(frame.axes.yaxis, analysis.scale)
        frame.axes.grid(alpha=0.25)
        fitted = [text for variant in analysis.variants if (text := _slope_text(variant, axis))]
        slopes = f"\nexponent of {axis.name}: " + "; ".join(fitted) if fitted else ""
        sheet.set_heading(frame, f"{axis.other} {axis.fixed}{_wrapped(slopes)}")
        frame.summary = f"Best {analysis.scale.name} against {axis.name} at {axis.other} {axis.fixed}.{slopes}"
    if any(variant.name for variant in analysis.variants):
        looks = [(variant.name, _look(k)) for k, variant in enumerate(analysis.variants)]
        sheet.add_legend(band, len(analysis.axes) - 1, "", [Line2D([], [], label=name, **look) for name, look in looks])


def _wrapped(text: str) -> str:
    """At most 70 characters a line, where `; ` allows it."""
    lines = [""]
    for part in text.split("; "):
        joined = f"{lines[-1]}; {part}" if lines[-1] else part
        lines = [*lines[:-1], joined] if len(joined) <= 70 else [*lines, part]
    return "\n".join(lines)


def _slope_text(variant: Variant, axis: SizeAxis) -> str:
    estimate = variant.slopes[axis.name].estimate if axis.name in variant.slopes else None
    return f"{variant.name} ".lstrip() + style.format_slope(estimate.value, estimate.half_width) if estimate else ""


def _look(place: int) -> dict[str, Any]:
    return {"color": f"C{place}", "markersize": 6, "marker": "osD^vP"[place % 6]}


def _optima(frame: Frame, scale: Scale, axis: SizeAxis, variant: Variant, place: int, count: int) -> None:
    rows = [row for row in axis.rows(variant.rows) if row.trains and row.optimum]
    nudge = 2 ** (0.05 * (place - (count - 1) / 2))  # keeps the bars at one size apart
    sizes = np.array([row.curve.size(axis.name) for row in rows]) * nudge
    best = [row.optimum.at for row in rows if row.optimum]
    values, errors, look = [e.value for e in best], [e.half_width or 0.0 for e in best], _look(place)
    frame.axes.errorbar(sizes, values, errors, linewidth=1.4, capsize=3, **look)
    hollow = [k for k, row in enumerate(rows) if not row.bracketed]
    frame.axes.plot(sizes[hollow], [values[k] for k in hollow], linestyle="", markerfacecolor="white", zorder=3, **look)
    for size, row, at in zip(sizes, rows, best, strict=True):
        ends = ", 95 % interval {:.4g} to {:.4g}".format(*map(scale.value, at.interval)) if at.interval else ""
        text = (
            f"{size_text(row.curve)}\nbest {scale.name} {scale.value(at.value):.4g}{ends}\nn = {len(row.curve.seeds)}"
        )
        frame.value(size, at.value, text)
