"""Pictures of transfer: loss against x, and the optimum against size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from depthmup_flax.report.analysis import Row, SizeAxis, Study, Variant
from depthmup_flax.report.loss_surfaces import Scale
from depthmup_flax.report.style import (
    COLUMNS,
    canvas,
    colors,
    format_slope,
    hide_unused,
    hyperparameter_axis,
    size_ticks,
    title_of,
)


def spread_sentence(variants: Sequence[Variant]) -> str:
    """What lines and shades are."""
    seeds = sorted({len(row.curve.seeds) for variant in variants for row in variant.rows})
    counts = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return "one seed (n = 1)" if seeds == [1] else f"mean ± standard deviation of n = {counts} seeds"


def panel_axes(study: Study) -> list[SizeAxis]:
    """The rows of panels; a sweep of a single size has one row with that depth."""
    if study.axes:
        return list(study.axes)
    curve = study.variants[0].rows[0].curve
    return [SizeAxis("depth", tuple(sorted({r.curve.depth for v in study.variants for r in v.rows})), curve.width)]


def variant_panels(study: Study, **kwargs: Any) -> tuple[Any, list[tuple[SizeAxis, Variant, Any, bool]]]:
    """A figure with a panel per size axis and variant, wrapped; the last item says which panels end their axis."""
    axes, count = panel_axes(study), len(study.variants)
    columns = min(count, COLUMNS)
    wrapped = math.ceil(count / columns)
    figure, panels = canvas(len(axes) * wrapped, columns, **kwargs)
    found = []
    for i, axis in enumerate(axes):
        own = panels[i * wrapped : (i + 1) * wrapped].ravel()
        legend = min(columns, count) - 1  # beside the first line of panels
        found += [(axis, v, own[k], k == legend) for k, v in enumerate(study.variants)]
        hide_unused(own[count:])
    return figure, found


def draw_transfer(study: Study) -> Any:
    """Loss against x: a panel per variant, a row per size that varies, a line per size, the optimum marked."""
    figure, panels = variant_panels(study, sharey=True)
    best = f", each point at its best {study.other.name}" if study.other else ""
    figure.suptitle(f"Training loss against {study.scale.name}{best}\n{spread_sentence(study.variants)}", fontsize=11)
    rows = [row for axis in panel_axes(study) for variant in study.variants for row in axis.rows(variant)]
    low, top, log_y = loss_limits(rows)
    above = any(_clipped(row, top).any() for row in rows)
    diverged = any(row.curve.diverged.any() for row in rows)
    strip = 0.05 + 0.028 * max(len(axis.sizes) for axis in panel_axes(study)) if diverged or above else 0.0
    for axis, variant, panel, has_legend in panels:
        palette = colors(axis.sizes)
        panel.set_yscale("log" if log_y else "linear")
        if variant.base.optimum:
            panel.axvline(variant.base.optimum.at.value, color="0.45", linestyle="--", linewidth=1.0, zorder=1)
        for place, row in enumerate(axis.rows(variant)):
            color = palette[getattr(row.curve, axis.name)]
            _curve(panel, study.scale, row, color, top)
            _strip_marks(panel, study.scale, row, color, top, 0.972 - 0.028 * place)
        if strip:
            _strip(panel, strip)
        panel.set_ylim(low, _above(low, top, strip, log_y))
        _finish(panel, study.scale, axis, variant)
        if has_legend:
            _legend(panel, axis, palette, diverged, above)
    return figure


def _finish(panel: Any, scale: Scale, axis: SizeAxis, variant: Variant) -> None:
    coordinates, margin = scale.coordinate(scale.values), 0.4 * _grid_step(scale)
    panel.set_xlim(coordinates[0] - margin, coordinates[-1] + margin)
    hyperparameter_axis(panel.xaxis, scale)
    panel.set_title(title_of(variant.name), fontsize=10)
    panel.grid(alpha=0.25)
    if panel.get_subplotspec().is_first_col():
        panel.set_ylabel(f"training loss\n({axis.other} {axis.fixed})")


def loss_limits(rows: Sequence[Row]) -> tuple[float, float, bool]:
    """Lowest and highest loss to show, and whether on a log scale (if they are more than twenty-fold apart).

    All optima of useful sizes and 80 % of their finite means are in view; absurd losses do not flatten the rest.
    """
    means = np.concatenate([row.curve.losses.mean(0) for row in rows if row.useful] or [np.zeros(0)])
    finite = means[np.isfinite(means)]
    best = np.array([row.optimum.loss.value for row in rows if row.optimum and row.useful])
    if not len(best):
        return 0.0, 1.0, False
    most = min(float(np.quantile(finite, 0.8)), 3 * float(np.median(finite)))
    top = max(most, best.max() + 0.15 * (best.max() - best.min()))
    if finite.max() < best.min() + 1.7 * (top - best.min()):  # nothing is absurd
        top = finite.max()
    top = max(top + 0.05 * (top - best.min()), best.min() + 0.02 * abs(best.min()) + 1e-9)
    log_y = bool(best.min() > 0 and top > 20 * best.min())
    low = best.min() / 1.3 if log_y else best.min() - 0.08 * (top - best.min())
    return float(low), float(top), log_y


def _above(low: float, top: float, strip: float, log_y: bool) -> float:
    """The limit that leaves the fraction ``strip`` of the panel free above ``top``."""
    share = 1 / (1 - strip)
    return low * (top / low) ** share if log_y else low + (top - low) * share


def _grid_step(scale: Scale) -> float:
    coordinates = scale.coordinate(scale.values)
    return float(np.diff(coordinates).min()) if len(coordinates) > 1 else 1.0


def _clipped(row: Row, top: float) -> np.ndarray:
    means = row.curve.losses.mean(0)
    return np.isfinite(means) & (means > top)


def _curve(panel: Any, scale: Scale, row: Row, color: Any, top: float) -> None:
    """Mean and spread, and a star at the optimum, hollow if that is at the edge of the grid."""
    curve = row.curve
    u, means = scale.coordinate(curve.x), curve.losses.mean(0)
    panel.plot(u, means, color=color, linewidth=1.5, marker="o", markersize=2.8, zorder=2)
    if len(curve.seeds) > 1:
        # The spread of a loss far above the panel would cover it.
        spread = np.where(_clipped(row, top), np.nan, curve.losses.std(0, ddof=1))
        panel.fill_between(u, means - spread, means + spread, color=color, alpha=0.18, linewidth=0, zorder=1.5)
    if row.optimum:
        fill = color if row.bracketed else "white"
        at = (row.optimum.at.value, row.optimum.loss.value)
        panel.plot(*at, "*", markersize=14, zorder=5, markerfacecolor=fill, markeredgecolor="black")


def _strip_marks(panel: Any, scale: Scale, row: Row, color: Any, top: float, height: float) -> None:
    """A cross for each point with a diverged run, an arrow for one above the panel; each size at a height of its own.

    ``height`` is in units of the panel.
    """
    for mark, where in (("x", row.curve.diverged > 0), ("^", _clipped(row, top))):
        u = scale.coordinate(row.curve.x[where])
        heights, transform = np.full(len(u), height), panel.get_xaxis_transform()
        panel.plot(u, heights, mark, color=color, markersize=4.5, zorder=4, transform=transform)


def _strip(panel: Any, height: float) -> None:
    """The band of `_strip_marks`, over whatever leaves the panel."""
    from matplotlib.patches import Rectangle

    band = Rectangle((0, 1 - height + 0.015), 1, height - 0.015, transform=panel.transAxes, color="0.94", zorder=3)
    panel.add_patch(band)


def _legend(panel: Any, axis: SizeAxis, palette: dict[int, Any], diverged: bool, clipped: bool) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=palette[size], marker="o", markersize=3, label=str(size)) for size in axis.sizes]
    star: dict[str, Any] = {"color": "0.3", "markersize": 11, "linestyle": "", "markeredgecolor": "black"}
    lines.append(Line2D([], [], marker="*", label="optimum", **star))
    lines.append(Line2D([], [], color="0.45", linestyle="--", label="of the base"))
    if diverged:
        lines.append(Line2D([], [], color="0.3", marker="x", linestyle="", label="a run diverged"))
    if clipped:
        lines.append(Line2D([], [], color="0.3", marker="^", linestyle="", label="above the panel"))
    panel.legend(handles=lines, title=axis.name, fontsize=8, title_fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))


def draw_optima(study: Study) -> Any:
    """The optimum against size, a line per variant; hollow where it is at the edge of the grid."""
    figure, panels = canvas(1, len(study.axes), width=5.6, height=4.2)
    interval = "bars: 95 % interval over seeds" if _any_interval(study) else "one seed: no intervals"
    figure.suptitle(f"Best {study.scale.name} against size ({interval}; hollow: edge of the grid)", fontsize=11)
    coordinates = study.scale.coordinate(study.scale.values)
    margin = _grid_step(study.scale)
    for axis, panel in zip(study.axes, panels[0], strict=True):
        for k, variant in enumerate(study.variants):
            _optima(panel, axis, variant, k, len(study.variants))
        size_ticks(panel, axis.sizes, axis.name)
        panel.set_title(f"{axis.other} {axis.fixed}", fontsize=10)
        panel.set_ylim(coordinates[0] - margin, coordinates[-1] + margin)
        hyperparameter_axis(panel.yaxis, study.scale)
        panel.grid(alpha=0.25)
        fitted = any(axis.name in v.slopes and v.slopes[axis.name].estimate for v in study.variants)
        panel.legend(fontsize=8, title="slope of log2 optimum" if fitted else None, title_fontsize=8)
    return figure


def _any_interval(study: Study) -> bool:
    return any(r.optimum and r.optimum.at.interval for v in study.variants for r in v.rows)


def _optima(panel: Any, axis: SizeAxis, variant: Variant, place: int, count: int) -> None:
    rows = [row for row in axis.rows(variant) if row.useful]
    nudge = 2 ** (0.05 * (place - (count - 1) / 2))  # so that bars at one size stay apart
    sizes = np.array([getattr(row.curve, axis.name) for row in rows]) * nudge
    best = [row.optimum.at for row in rows if row.optimum]
    errors = [estimate.half_width or 0.0 for estimate in best]
    slope = variant.slopes.get(axis.name)
    estimate = slope.estimate if slope else None
    label = ": " + format_slope(estimate.value, estimate.half_width) if estimate else ""
    style = {"color": f"C{place}", "markersize": 6, "marker": "osD^vP"[place % 6]}
    panel.errorbar(
        sizes,
        [e.value for e in best],
        errors,
        linewidth=1.4,
        capsize=3,
        label=(variant.name or "optimum") + label,
        **style,
    )
    hollow = [k for k, row in enumerate(rows) if not row.bracketed]
    panel.plot(sizes[hollow], [best[k].value for k in hollow], linestyle="", markerfacecolor="white", zorder=3, **style)
