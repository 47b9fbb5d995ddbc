"""Figures of training over time: loss at the transferred x, and how early the optimum is settled."""

from __future__ import annotations

import numpy as np

from depthmup_flax.report import style
from depthmup_flax.report.optimum import vertices
from depthmup_flax.report.points import loss_text, mean_and_sd, size_text
from depthmup_flax.report.sheet import Frame, Sheet
from depthmup_flax.report.transfer import Analysis, Row
from depthmup_flax.report.variant_panels import Panel, variant_panels


def draw_curves(analysis: Analysis, sheet: Sheet) -> None:
    """Training loss over steps, every size at the x of the grid that is best at the base."""
    x = analysis.scale.name
    title = f"Training loss over time, every size at the base's best {x} of the grid\n{style.spread_sentence(analysis)}"
    low, high, log_y = _limits(analysis)
    for panel in variant_panels(analysis, sheet, title):
        transferred, remarks, ends = panel.variant.transferred, [], []
        for row, size, color in panel.rows:
            index = row.curve.index(transferred)
            if index is None:
                remarks.append(f"{size} not run")
                continue
            losses, steps = row.curve.slices[:, index], row.curve.slice_ends  # (S, T), (T,)
            means = losses.mean(0)
            style.mean_and_spread(panel.axes, steps, losses, color, high, markersize=2.5)
            _values(panel.frame, row, steps, losses, high)
            if row.curve.diverged[index]:
                remarks.append(f"{size} diverged")
                for last in np.flatnonzero(np.isfinite(means))[-1:]:
                    panel.axes.plot(steps[last], means[last], "x", color=color, markersize=8, markeredgewidth=2)
            else:
                ends.append(f"{row.curve.losses[:, index].mean():.4g} at {panel.axis.name} {size}")
                remarks += [f"{size} above the panel"] if np.nanmin(means) > high else []
        panel.axes.set_yscale("log" if log_y else "linear")
        panel.axes.set_ylim(low, high)
        panel.remark(remarks)
        _step_axis(panel)
        at, summary = "", ""
        if transferred is not None:
            at = f"best {x} of the grid: {style.value_label(transferred, analysis.scale)}"
            summary = f"Training loss over steps at {x} {transferred:.4g}."
        panel.finish("training loss", at, f"{summary} Loss at the end: {', '.join(ends)}." if ends else summary)


def _values(frame: Frame, row: Row, steps: np.ndarray, losses: np.ndarray, high: float) -> None:
    for step, at_step in zip(steps, losses.T, strict=True):
        mean, sd = mean_and_sd(at_step)
        if mean is not None and mean <= high:
            frame.value(step, mean, f"{size_text(row.curve)}\nstep {step}\n{loss_text(mean, sd, len(at_step))}")


def _limits(analysis: Analysis) -> tuple[float, float, bool]:
    """Limits from the runs that did not diverge; log scale if losses differ more than twenty-fold."""
    losses = [
        row.curve.slices[:, index].ravel()
        for variant in analysis.variants
        for row in variant.rows
        if (index := row.curve.index(variant.transferred)) is not None and not row.curve.diverged[index] and row.trains
    ]
    finite = np.concatenate(losses) if losses else np.array([0.0, 1.0])
    low, high = float(np.nanmin(finite)), float(np.nanmax(finite))
    if low > 0 and high > 20 * low:
        return low / 1.2, high * 1.2, True
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin, False


def draw_over_time(analysis: Analysis, sheet: Sheet) -> None:
    """The optimum of each size after each time slice."""
    scale = analysis.scale
    coordinates = scale.coordinate(scale.values)
    for panel in variant_panels(analysis, sheet, f"Best {scale.name} after each slice of training time"):
        for row, _, color in panel.rows:
            if not row.trains:  # its optimum is meaningless
                continue
            # Points that diverge later cannot be chosen, so they are excluded from the start.
            means = np.where(row.curve.diverged[:, None] > 0, np.nan, row.curve.slices.mean(0))  # (X, T)
            best = vertices(scale.coordinate(row.curve.x), means.T)
            panel.axes.plot(row.curve.slice_ends, best, color=color, linewidth=1.5, marker="o", markersize=3)
            for step, at in zip(row.curve.slice_ends, best, strict=True):
                text = f"best {scale.name} {scale.value(at):.4g}, n = {len(row.curve.seeds)}"
                panel.frame.value(step, at, f"{size_text(row.curve)}\nafter step {step}\n{text}")
        panel.remark([f"{size} does not train" for row, size, _ in panel.rows if not row.trains])
        panel.axes.set_ylim(coordinates[0] - 0.5, coordinates[-1] + 0.5)
        style.hyperparameter_axis(panel.axes.yaxis, scale)
        _step_axis(panel)
        summary = f"Best {scale.name} of each {panel.axis.name} if training had stopped at an earlier step."
        panel.finish(panel.axes.get_ylabel(), summary=summary)


def _step_axis(panel: Panel) -> None:
    panel.axes.set_xlabel("step")
    panel.axes.set_xlim(left=0)
    panel.axes.locator_params(axis="x", integer=True)
