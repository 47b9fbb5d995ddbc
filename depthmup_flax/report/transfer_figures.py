"""Figures of transfer: loss against x, and the optimum against size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from depthmup_flax.report import style
from depthmup_flax.report.loss_surfaces import Scale
from depthmup_flax.report.style import Color, Panel
from depthmup_flax.report.transfer import Row, SizeAxis, Study, Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def draw_transfer(study: Study) -> Figure:
    """Loss against x: a panel per variant, a row per size that varies, a line per size, the optimum marked."""
    scale, rows = study.scale, [row for axis in study.axes for row in axis.rows(study.rows)]
    best = f", each point at its best {study.other.name}" if study.other else ""
    title = f"Training loss against {scale.name}{best}\n{style.spread_sentence(study)}"
    figure, panels = style.variant_panels(study, title)
    low, top, log_y = loss_limits(rows)
    clipped = any(_clipped(row, top).any() for row in rows)
    diverged = any(row.curve.diverged.any() for row in rows)
    strip = 0.05 + 0.028 * max(len(axis.sizes) for axis in study.axes) if diverged or clipped else 0.0
    coordinates, margin = scale.coordinate(scale.values), 0.4 * _grid_step(scale)
    for panel in panels:
        axes = panel.axes
        axes.set_yscale("log" if log_y else "linear")
        if panel.variant.base.optimum:
            axes.axvline(panel.variant.base.optimum.at.value, color="0.45", linestyle="--", linewidth=1.0, zorder=1)
        for row, _, color in panel.rows:
            _curve(axes, scale, row, color, top)
        if strip:
            _strip(panel, scale, top, strip)
        share = 1 / (1 - strip)  # leaves room for the strip above `top`
        axes.set_ylim(low, low * (top / low) ** share if log_y else low + (top - low) * share)
        axes.set_xlim(coordinates[0] - margin, coordinates[-1] + margin)
        style.hyperparameter_axis(axes.xaxis, scale)
        panel.finish("training loss", legend=_marks(diverged, clipped))
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
    log_y = bool(best.min() > 0 and top > 20 * best.min())
    low = best.min() / 1.3 if log_y else best.min() - 0.08 * (top - best.min())
    return float(low), float(top), log_y


def _grid_step(scale: Scale) -> float:
    coordinates = scale.coordinate(scale.values)
    return float(np.diff(coordinates).min()) if len(coordinates) > 1 else 1.0


def _clipped(row: Row, top: float) -> np.ndarray:
    means = row.curve.losses.mean(0)
    return np.isfinite(means) & (means > top)


def _curve(axes: Axes, scale: Scale, row: Row, color: Color, top: float) -> None:
    """Mean and spread, and a star at the optimum, hollow if it is at the edge of the grid."""
    style.mean_and_spread(axes, scale.coordinate(row.curve.x), row.curve.losses, color, top, markersize=2.8)
    if row.optimum:
        fill = color if row.bracketed else "white"
        at = (row.optimum.at.value, row.optimum.loss.value)
        axes.plot(*at, "*", markersize=14, zorder=5, markerfacecolor=fill, markeredgecolor="black")


def _strip(panel: Panel, scale: Scale, top: float, height: float) -> None:
    """A band over the curves with crosses where a run diverged and arrows where the mean is above ``top``.

    Each size has its own line in the band; ``height`` is a fraction of the panel.
    """
    from matplotlib.patches import Rectangle

    axes, transform = panel.axes, panel.axes.get_xaxis_transform()
    corner, height = (0, 1 - height + 0.015), height - 0.015
    axes.add_patch(Rectangle(corner, 1, height, transform=axes.transAxes, color="0.94", zorder=3))
    for place, (row, _, color) in enumerate(panel.rows):
        for mark, where in (("x", row.curve.diverged > 0), ("^", _clipped(row, top))):
            u = scale.coordinate(row.curve.x[where])
            line = np.full(len(u), 0.972 - 0.028 * place)
            axes.plot(u, line, mark, color=color, markersize=4.5, zorder=4, transform=transform)


def _marks(diverged: bool, clipped: bool) -> list[Line2D]:
    """Legend entries of the marks."""
    from matplotlib.lines import Line2D

    entries: list[tuple[str, dict[str, Any]]]
    entries = [("optimum", {"marker": "*", "markersize": 11, "markeredgecolor": "black"})]
    entries += [("of the base", {"color": "0.45", "linestyle": "--"})]
    entries += [("a run diverged", {"marker": "x"})] if diverged else []
    entries += [("above the panel", {"marker": "^"})] if clipped else []
    return [Line2D([], [], label=label, **{"color": "0.3", "linestyle": "", **look}) for label, look in entries]


def draw_optima(study: Study) -> Figure:
    """The optimum against size, a line per variant; hollow where it is at the edge of the grid."""
    figure, panels = style.canvas(1, len(study.axes), width=5.6, height=4.2)
    known = any(row.optimum and row.optimum.at.interval for row in study.rows)
    interval = "bars: 95 % interval over seeds" if known else "one seed: no intervals"
    figure.suptitle(f"Best {study.scale.name} against size ({interval}; hollow: edge of the grid)", fontsize=11)
    coordinates, margin = study.scale.coordinate(study.scale.values), _grid_step(study.scale)
    for axis, panel in zip(study.axes, panels[0], strict=True):
        for k, variant in enumerate(study.variants):
            _optima(panel, axis, variant, k, len(study.variants))
        style.size_ticks(panel, axis.sizes, axis.name)
        panel.set_title(f"{axis.other} {axis.fixed}", fontsize=10)
        panel.set_ylim(coordinates[0] - margin, coordinates[-1] + margin)
        style.hyperparameter_axis(panel.yaxis, study.scale)
        panel.grid(alpha=0.25)
        fitted = any(axis.name in v.slopes and v.slopes[axis.name].estimate for v in study.variants)
        panel.legend(fontsize=8, title="slope of log2 optimum" if fitted else None, title_fontsize=8)
    return figure


def _optima(axes: Axes, axis: SizeAxis, variant: Variant, place: int, count: int) -> None:
    rows = [row for row in axis.rows(variant.rows) if row.trains]
    nudge = 2 ** (0.05 * (place - (count - 1) / 2))  # keeps the bars at one size apart
    sizes = np.array([row.curve.size(axis.name) for row in rows]) * nudge
    best = [row.optimum.at for row in rows if row.optimum]
    values, errors = [e.value for e in best], [e.half_width or 0.0 for e in best]
    estimate = variant.slopes[axis.name].estimate if axis.name in variant.slopes else None
    label = variant.name or "optimum"
    if estimate:
        label += ": " + style.format_slope(estimate.value, estimate.half_width)
    look: dict[str, Any] = {"color": f"C{place}", "markersize": 6, "marker": "osD^vP"[place % 6]}
    axes.errorbar(sizes, values, errors, linewidth=1.4, capsize=3, label=label, **look)
    hollow = [k for k, row in enumerate(rows) if not row.bracketed]
    axes.plot(sizes[hollow], [values[k] for k in hollow], linestyle="", markerfacecolor="white", zorder=3, **look)
