"""The figure of a history: a panel per metric, a color per run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from depthmup_flax.report import style
from depthmup_flax.report.history import SPLITS, Run, metrics_of
from depthmup_flax.report.sheet import Frame, Sheet

MOST_POINTS = 400  # of a line
_LOG_RATIO = 20.0  # of the highest to the lowest value, from which an axis is logarithmic
_STYLES: dict[str, dict[str, Any]] = {
    "train": {"linestyle": "-", "linewidth": 1.4},
    "validation": {"linestyle": "--", "linewidth": 1.0, "marker": "s", "markersize": 4},
    "test": {"linestyle": "--", "linewidth": 1.0, "marker": "o", "markersize": 4},
}
_BAND = ("forecast_low", "forecast_high", "forecast_loss")
CAPTION = (
    "solid: training, a mean over the steps since the row before; marks: evaluations; shaded: the band of the training "
    "loss that a forecast expects, which holds for means over its blocks. "
    f"More than {MOST_POINTS} rows are averaged in groups."
)


def draw(runs: Sequence[Run], sheet: Sheet) -> None:
    """Draws every metric that a run logs in training or in evaluations."""
    metrics = metrics_of(runs)
    (band,) = sheet.add_bands([""], len(metrics), min(len(metrics), style.COLUMNS), sharey=False)
    sheet.set_title("Metrics over steps")
    for metric, frame in zip(metrics, band.frames, strict=True):
        values = [_draw_run(frame, run, metric, f"C{k % 10}") for k, run in enumerate(runs)]
        _axes(frame, metric.replace("$", r"\$"), np.concatenate(values))
    names = [(run.name.replace("$", r"\$"), f"C{k % 10}") for k, run in enumerate(runs)]
    colors = [Line2D([], [], color=color, label=name, linewidth=3) for name, color in names]
    splits = dict.fromkeys(name.partition("_")[0] for run in runs for name in run.metrics)
    kinds = [Line2D([], [], color="0.3", label=split, **look) for split, look in _STYLES.items() if split in splits]
    sheet.add_legend(band, min(len(metrics), style.COLUMNS) - 1, "", [*colors, *kinds])


def _draw_run(frame: Frame, run: Run, metric: str, color: str) -> np.ndarray:
    """Draws one run; returns the values."""
    drawn = [np.zeros(0)]
    if metric == "loss" and set(_BAND) <= run.metrics.keys():
        at = np.isfinite(run.metrics["forecast_loss"])
        steps, (low, high, expected) = run.metrics["step"][at], (run.metrics[name][at] for name in _BAND)
        frame.axes.fill_between(steps, low, high, step="pre", color=color, alpha=0.15, linewidth=0)
        frame.axes.step(steps, expected, where="pre", color=color, linewidth=0.8, linestyle=":")
    for split in SPLITS:
        steps, values = thinned(*run.points(split, metric))
        if len(steps):
            look = {"marker": "."} if len(steps) == 1 else {}  # a line of one point is invisible
            frame.axes.plot(steps, values, color=color, **look | _STYLES[split])
        for step, value in zip(steps, values, strict=True):
            frame.value(step, value, f"{run.name}\nstep {step:.0f}\n{split} {metric} {value:.4g}")
        drawn.append(values)
    return np.concatenate(drawn)


def thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) -> at most `MOST_POINTS`: steps and values, averaged in groups of neighbors."""
    count = min(len(steps), MOST_POINTS)
    if count == len(steps):
        return steps, values
    means = lambda x: np.array([group.mean() for group in np.array_split(x, count)])
    return means(steps), means(values)


def _axes(frame: Frame, metric: str, values: np.ndarray) -> None:
    if len(values) and 0 < values.min() < values.max() / _LOG_RATIO:
        frame.axes.set_yscale("log")
    frame.axes.set(xlabel="step", ylabel=metric)
    frame.axes.set_xlim(left=0)
    frame.axes.locator_params(axis="x", integer=True)
    frame.axes.grid(alpha=0.25)
    frame.summary = f"{metric} over steps"
    if len(values):
        frame.summary += f", from {values.min():.4g} to {values.max():.4g}"
