"""The figure of a check: sizes over width and depth, flat under a right parametrization."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from depthmup_flax.check.judgment import FEATURES, Quantity
from depthmup_flax.check.recorded_sizes import EVERYTHING, OUTPUT, Record, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Line = tuple[str, Mapping[int, Sequence[float]], bool]  # name, size -> a value per seed, failed

_SHOWN = 10  # lines with a name in a legend; failures come first


def draw(records: Sequence[Record], failures: Sequence[Quantity], title: str) -> bytes:
    """A PNG with a row per axis: activations before training, changes after it, each group trained alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = Table(records)
    axes = table.axes()
    figure = Figure(figsize=(17, 5.4 * len(axes)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12)
    for row, axis in zip(figure.subplots(len(axes), 3, squeeze=False), axes, strict=True):
        failed = {(q.kind, q.group, q.name) for q in failures if q.axis == axis}
        last = table.steps(axis, EVERYTHING, "change")[-1]
        for panel, kind, step, heading in (
            (row[0], "activation", 0, "activations before training"),
            (row[1], "change", last, f"change after {last} steps of training everything"),
        ):
            lines = [
                (name, table.values(axis, EVERYTHING, kind, name, step), (kind, EVERYTHING, name) in failed)
                for name in table.features(axis)
            ]
            _panel(panel, axis, heading, lines)
        lines = []
        for group in table.groups(axis)[1:]:
            bad = not failed.isdisjoint({("change", group, OUTPUT), ("change", group, FEATURES)})
            lines.append((group, table.values(axis, group, "change", OUTPUT, 1), bad))
        _panel(row[2], axis, "change of the output after 1 step of one group alone", lines)
    content = io.BytesIO()
    figure.savefig(content, dpi=110, format="png")
    return content.getvalue()


def _panel(panel: Axes, axis: str, title: str, lines: Sequence[_Line]) -> None:
    """A log-log plot with a line and the range over seeds for each name, without lines that are zero or not finite."""
    panel.set(title=title, xlabel=axis, ylabel="root mean square", xscale="log", yscale="log")
    drawn = []
    for name, values, bad in sorted(lines, key=lambda line: not line[2]):
        logs = {size: np.log([v for v in values[size] if v > 0 and math.isfinite(v)]) for size in sorted(values)}
        if logs and all(len(log) for log in logs.values()):
            drawn.append((name, logs, bad))
    for i, (name, logs, bad) in enumerate(drawn):
        mean, low, high = (np.exp([f(log) for log in logs.values()]) for f in (np.mean, np.min, np.max))
        color, width = ("tab:red", 2.2) if bad else (f"C{(i * 2) % 10}", 1.1)
        marker, label = "os^vD*Px+<"[i % 10], name if i < _SHOWN else None
        panel.plot([*logs], mean, marker=marker, markersize=4, alpha=0.9, label=label, color=color, linewidth=width)
        panel.fill_between([*logs], low, high, alpha=0.12, color=color, linewidth=0)
    sizes = sorted({size for _, logs, _ in drawn for size in logs})
    panel.set_xticks(sizes, labels=[str(size) for size in sizes], minor=False)
    panel.minorticks_off()
    bottom, top = panel.get_ylim()
    if top / bottom < 100:  # a flat line must look flat
        middle = math.sqrt(bottom * top)
        panel.set_ylim(middle / 10, middle * 10)
    panel.grid(alpha=0.3)
    if drawn:
        more = len(drawn) - _SHOWN
        panel.legend(fontsize=7, loc="best", title=f"and {more} more" if more > 0 else None, title_fontsize=7)
