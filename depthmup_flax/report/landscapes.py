"""Pictures of two hyperparameters at once, and of loss against parameter count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from depthmup_flax.report import optimum as opt
from depthmup_flax.report.analysis import Row, Study, power_laws
from depthmup_flax.report.loss_surfaces import Scale, Surface
from depthmup_flax.report.style import (
    COLUMNS,
    canvas,
    colors,
    format_slope,
    hide_unused,
    hyperparameter_axis,
    title_of,
)

_UPRIGHT = 20.0  # a slope above this is no number worth printing


def draw_heatmap(study: Study, second: Scale) -> Any:
    """Mean loss over x and y: a panel per variant and size, with the optimum and the optimal sublevel set."""
    columns = min(len(study.surfaces), COLUMNS)
    rows = math.ceil(len(study.surfaces) / columns)
    figure, panels = canvas(rows, columns, width=4.2, height=3.9)
    figure.suptitle(
        "Training loss, mean over seeds; star: optimum; gray cross: a run diverged\n"
        "red: losses up to min + 0.1 (median - min), and the slope along them with its 95 % interval",
        fontsize=11,
    )
    image = None
    low, top = _limits(study.surfaces)
    for surface, panel in zip(study.surfaces, panels.ravel(), strict=False):
        image = _heat(panel, study.scale, second, surface, low, top)
    hide_unused(panels.ravel()[len(study.surfaces) :])
    figure.colorbar(image, ax=panels, label="training loss", extend="max", shrink=0.8)
    return figure


def sublevel_slope(surface: Surface, x: Scale, y: Scale) -> tuple[float, tuple[float, float] | None] | None:
    """Slope of y against x along the optimal sublevel set and its 95 % interval, from `opt.valley_angle`.

    ``None`` if the set has no direction; no interval for one seed, or where it reaches the vertical.
    """
    angle = opt.valley_angle(x.coordinate(surface.x), y.coordinate(surface.y), surface.losses)
    if angle is None:
        return None
    ends = angle.interval
    known = ends is not None and -math.pi / 2 < ends[0] and ends[1] < math.pi / 2
    return math.tan(angle.value), (math.tan(ends[0]), math.tan(ends[1])) if known and ends else None


def _heat(panel: Any, x: Scale, y: Scale, surface: Surface, low: float, top: float) -> Any:
    u, v, means = x.coordinate(surface.x), y.coordinate(surface.y), surface.means()
    image = panel.pcolormesh(
        _edges(u), _edges(v), np.ma.masked_invalid(means), cmap="viridis_r", vmin=low, vmax=top, rasterized=True
    )
    panel.set_facecolor("0.9")
    rows, columns = np.nonzero(surface.diverged)
    panel.plot(u[columns], v[rows], "x", color="0.55", markersize=4)
    inside = opt.sublevel_set(means)
    _outline(panel, _edges(u), _edges(v), inside)
    if np.isfinite(means).any():
        row, column = np.unravel_index(np.nanargmin(means), means.shape)
        panel.plot(u[column], v[row], "*", color="white", markersize=14, markeredgecolor="black")
    hyperparameter_axis(panel.xaxis, x)
    hyperparameter_axis(panel.yaxis, y)
    slope = sublevel_slope(surface, x, y)
    text = "no clear direction" if slope is None else "upright" if abs(slope[0]) > _UPRIGHT else f"slope {slope[0]:.2f}"
    if slope and slope[1] and abs(slope[0]) <= _UPRIGHT:
        text += f" [{slope[1][0]:.2f}, {slope[1][1]:.2f}]"
    name = f"{title_of(surface.variant)}\n" if surface.variant else ""
    panel.set_title(f"{name}width {surface.width}, depth {surface.depth}: {text}", fontsize=9)
    return image


def _limits(surfaces: Sequence[Surface]) -> tuple[float, float]:
    """Of the colors: down to the lowest loss, up to the 80 % quantile."""
    means = np.concatenate([surface.means().ravel() for surface in surfaces])
    finite = means[np.isfinite(means)]
    return (float(finite.min()), float(np.quantile(finite, 0.8))) if len(finite) else (0.0, 1.0)


def _edges(coordinates: np.ndarray) -> np.ndarray:
    """(N,) centers -> (N + 1,) borders of cells."""
    if len(coordinates) == 1:
        return coordinates[0] + np.array([-0.5, 0.5])
    middle = (coordinates[1:] + coordinates[:-1]) / 2
    return np.concatenate([[2 * coordinates[0] - middle[0]], middle, [2 * coordinates[-1] - middle[-1]]])


def _outline(panel: Any, u: np.ndarray, v: np.ndarray, inside: np.ndarray) -> None:
    """Red lines between cells of the set and others; ``u`` and ``v`` are the cells' borders."""
    padded = np.pad(inside, 1)
    style = {"color": "tab:red", "linewidth": 1.6, "capstyle": "round"}
    for i, j in np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1]):
        panel.vlines(u[j], v[i], v[i + 1], **style)
    for i, j in np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1]):
        panel.hlines(v[i], u[j], u[j + 1], **style)


def draw_parameters(study: Study) -> Any:
    """Lowest loss against parameter count: lines of equal depth and of equal width, those that have two points."""
    rows = [row for variant in study.variants for row in variant.rows if row.positive]
    lines = {name: [(r.curve.variant, getattr(r.curve, name)) for r in rows] for name in ("depth", "width")}
    names = [name for name, found in lines.items() if len(set(found)) < len(found)] or ["depth"]
    figure, panels = canvas(len(study.variants), len(names), width=5.4, height=3.9, sharey=True)
    bars = "; bars: 95 % interval over seeds" if any(len(row.curve.seeds) > 1 for row in rows) else ""
    title = f"Lowest loss over {study.scale.name} against parameters; lines: loss = c $P^{{-b}}$"
    figure.suptitle(title + bars, fontsize=11)
    losses = [row.optimum.loss.value for row in rows if row.optimum] or [1.0]
    for variant, own in zip(study.variants, panels, strict=True):
        laws = power_laws(variant.rows)
        for name, panel in zip(names, own, strict=True):
            _power_lines(panel, [row for row in rows if row in variant.rows], name, laws[name])
            panel.set_title(", ".join(filter(None, (variant.name, f"equal {name}"))), fontsize=10)
            _log_log(panel, min(losses), max(losses))
            panel.legend(fontsize=7, title=name, title_fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        own[0].set_ylabel("lowest training loss")
    return figure


def _log_log(panel: Any, low: float, high: float) -> None:
    """Plain numbers at a few ticks; limits follow the losses, not their error bars."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, ScalarFormatter

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


def _power_lines(panel: Any, rows: Sequence[Row], name: str, laws: dict[int, opt.Estimate]) -> None:
    sizes = sorted({getattr(row.curve, name) for row in rows})
    for size, color in colors(sizes).items():
        line = sorted((r for r in rows if getattr(r.curve, name) == size), key=lambda r: r.curve.parameters)
        counts = np.array([r.curve.parameters for r in line], np.float64)
        losses = np.array([r.optimum.loss.value for r in line if r.optimum])
        errors = [r.optimum.loss.half_width or 0.0 for r in line if r.optimum]
        law = laws.get(size)
        label = f"{size}: b = {format_slope(law.value, law.half_width, 3)}" if law else str(size)
        panel.errorbar(counts, losses, errors, linestyle="", marker="o", markersize=4, color=color, capsize=2)
        if law:
            middle = np.exp(np.log(losses).mean() + law.value * np.log(counts).mean())
            panel.plot(counts, middle * counts**-law.value, color=color, linewidth=1.3, label=label)
        else:
            panel.plot(counts, losses, color=color, linewidth=0.8, linestyle=":", label=label)
