"""Figures of training over time: loss at the transferred x, and how early the optimum is settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from depthmup_flax.report import style
from depthmup_flax.report.optimum import vertices
from depthmup_flax.report.transfer import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curves(study: Study) -> Figure:
    """Training loss over steps, every size at the x that is best at the base."""
    x = study.scale.name
    title = f"Training loss over time, every size at the base's best {x}\n{style.spread_sentence(study)}"
    figure, panels = style.variant_panels(study, title)
    low, high, log_y = _limits(study)
    for panel in panels:
        transferred, remarks = panel.variant.transferred, []
        for row, size, color in panel.rows:
            index = row.curve.index(transferred)
            if index is None:
                remarks.append(f"{size} not run")
                continue
            losses, steps = row.curve.slices[:, index], row.curve.slice_ends  # (S, T), (T,)
            means = losses.mean(0)
            style.mean_and_spread(panel.axes, steps, losses, color, high, markersize=2.5)
            if row.curve.diverged[index]:
                remarks.append(f"{size} diverged")
                for last in np.flatnonzero(np.isfinite(means))[-1:]:
                    panel.axes.plot(steps[last], means[last], "x", color=color, markersize=8, markeredgewidth=2)
            elif np.nanmin(means) > high:
                remarks.append(f"{size} above the panel")
        panel.axes.set_yscale("log" if log_y else "linear")
        panel.axes.set_ylim(low, high)
        if remarks:
            text, corner = f"{panel.axis.name} " + ", ".join(remarks), panel.axes.transAxes
            panel.axes.text(0.97, 0.97, text, transform=corner, ha="right", va="top", fontsize=8, wrap=True)
        _step_axis(panel)
        at = "" if transferred is None else f"{x} {style.value_label(transferred, study.scale)}"
        panel.finish("training loss", subtitle=at)
    return figure


def _limits(study: Study) -> tuple[float, float, bool]:
    """Limits from the runs that did not diverge; log scale if losses differ more than twenty-fold."""
    losses = [
        row.curve.slices[:, index].ravel()
        for variant in study.variants
        for row in variant.rows
        if (index := row.curve.index(variant.transferred)) is not None and not row.curve.diverged[index] and row.trains
    ]
    finite = np.concatenate(losses) if losses else np.array([0.0, 1.0])
    low, high = float(np.nanmin(finite)), float(np.nanmax(finite))
    if low > 0 and high > 20 * low:
        return low / 1.2, high * 1.2, True
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin, False


def draw_over_time(study: Study) -> Figure:
    """The optimum of each size after each time slice."""
    scale = study.scale
    figure, panels = style.variant_panels(study, f"Best {scale.name} after each slice of training time")
    coordinates = scale.coordinate(scale.values)
    for panel in panels:
        for row, _, color in panel.rows:
            # Points that diverge later are excluded from the start: nobody would use them.
            means = np.where(row.curve.diverged[:, None] > 0, np.nan, row.curve.slices.mean(0))  # (X, T)
            best = vertices(scale.coordinate(row.curve.x), means.T)
            panel.axes.plot(row.curve.slice_ends, best, color=color, linewidth=1.5, marker="o", markersize=3)
        panel.axes.set_ylim(coordinates[0] - 0.5, coordinates[-1] + 0.5)
        style.hyperparameter_axis(panel.axes.yaxis, scale)
        _step_axis(panel)
        panel.finish(panel.axes.get_ylabel())
    return figure


def _step_axis(panel: style.Panel) -> None:
    panel.axes.set_xlabel("step")
    panel.axes.set_xlim(left=0)
    panel.axes.locator_params(axis="x", integer=True)
