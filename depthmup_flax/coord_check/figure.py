"""The picture of a coordinate check: sizes against width and depth, flat where the parametrization is right."""

from __future__ import annotations

import math
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from depthmup_flax.coord_check.measure import EVERYTHING, OUTPUT
from depthmup_flax.coord_check.networks import SCORES
from depthmup_flax.coord_check.verdict import FEATURES, Table

if TYPE_CHECKING:
    from depthmup_flax.coord_check.check import Report

_SHOWN = 10  # lines with a name in a legend; what failed comes first


def draw(report: Report, path: pathlib.Path) -> None:
    """A PNG: a row per axis; activations before training, changes after it, and each group trained alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = Table(report.records)
    axes = table.axes()
    figure = Figure(figsize=(17, 5.4 * len(axes)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(axes), 3, squeeze=False)
    verdict = "PASS" if report.ok else "FAIL: " + ", ".join(cause.name.replace("_", " ") for cause in report.causes)
    rule = report.rule
    figure.suptitle(
        f"Coordinate check, alpha = {rule.alpha:g}, gamma = {rule.gamma:g}, width rule {rule.width}: {verdict}\n"
        f"flat is right; mean and range of n = {report.seeds} seeds; red, thick: failed",
        fontsize=12,
    )
    for row, axis in zip(panels, axes, strict=True):
        last = table.steps(axis, EVERYTHING, "change")[-1]
        names = [name for name in table.activations(axis) if name.rpartition("/")[2] != SCORES]
        failed = {(q.kind, q.group, q.name) for q in report.failures if q.axis == axis}
        _panel(
            row[0],
            axis,
            "activations before training",
            [
                (n, table.values(axis, EVERYTHING, "activation", n, 0), ("activation", EVERYTHING, n) in failed)
                for n in names
            ],
        )
        _panel(
            row[1],
            axis,
            f"change after {last} steps of training everything",
            [
                (n, table.values(axis, EVERYTHING, "change", n, last), ("change", EVERYTHING, n) in failed)
                for n in names
            ],
        )
        groups = table.groups(axis)[1:]
        _panel(
            row[2],
            axis,
            "change of the output after 1 step of one group alone",
            [
                (
                    group,
                    table.values(axis, group, "change", OUTPUT, 1),
                    any(("change", group, name) in failed for name in (OUTPUT, FEATURES)),
                )
                for group in groups
            ],
        )
    figure.savefig(path, dpi=110)


def _panel(panel: Any, axis: str, title: str, lines: list[tuple[str, dict[int, list[float]], bool]]) -> None:
    """Log-log; one line per name with the range over seeds; what is zero or not finite is not drawn."""
    panel.set(title=title, xlabel=axis, ylabel="root mean square", xscale="log", yscale="log")
    drawn = [(name, values, bad) for name, values, bad in lines if _drawable(values)]
    for i, (name, values, bad) in enumerate(sorted(drawn, key=lambda line: not line[2])):
        sizes = sorted(values)
        logs = [np.log([v for v in values[size] if v > 0 and math.isfinite(v)]) for size in sizes]
        mean, low, high = (np.exp([f(log) for log in logs]) for f in (np.mean, np.min, np.max))
        style = {"color": "tab:red", "linewidth": 2.2} if bad else {"color": f"C{(i * 2) % 10}", "linewidth": 1.1}
        marker = "os^vD*Px+<"[i % 10]
        label = name if i < _SHOWN else None
        panel.plot(sizes, mean, marker=marker, markersize=4, alpha=0.9, label=label, **style)
        panel.fill_between(sizes, low, high, alpha=0.12, color=style["color"], linewidth=0)
    sizes = sorted({size for _, values, _ in drawn for size in values})
    panel.set_xticks(sizes, labels=[str(size) for size in sizes], minor=False)
    panel.minorticks_off()
    low, high = panel.get_ylim()
    if high / low < 100:  # a flat line must look flat
        middle = math.sqrt(low * high)
        panel.set_ylim(middle / 10, middle * 10)
    panel.grid(alpha=0.3)
    if drawn:
        more = len(drawn) - _SHOWN
        panel.legend(fontsize=7, loc="best", title=f"and {more} more" if more > 0 else None, title_fontsize=7)


def _drawable(values: dict[int, list[float]]) -> bool:
    return bool(values) and all(any(v > 0 and math.isfinite(v) for v in seeds) for seeds in values.values())
