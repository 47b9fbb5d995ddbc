"""Draws reproduction/pages/by_class.png: python -m reproduction.pages.by_class_figure. No JAX."""

from __future__ import annotations

import pathlib

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from depthmup_flax.report import style
from reproduction.rules.by_class.table import Result, results

FILE = pathlib.Path(__file__).with_name("by_class.png")
LOOKS = {
    "depth_mup": ("depth_mup, rate of the small network", "tab:blue", "o"),
    "completep": ("completep, rate of the small network", "tab:cyan", "s"),
    "sp": ("sp, its own best rate at the large size", "tab:red", "X"),
    "gpt2": ("sp with GPT-2's start, likewise", "tab:orange", "P"),
}


def draw(found: list[Result]) -> Figure:
    """A line for each task, and each way's excess with its standard error over seeds."""
    figure = Figure(figsize=(8.2, 4.4), layout="constrained")
    axes = figure.subplots()
    for row, (way, (label, color, marker)) in enumerate(LOOKS.items()):
        excess = [one.excess[way] for one in found]
        x = [values.mean() for values in excess]
        error = [values.std(ddof=1) / np.sqrt(len(values)) for values in excess]
        y = np.arange(len(found)) + 0.14 * (row - 1.5)
        axes.errorbar(x, y, xerr=error, fmt=marker, color=color, label=label, markersize=6, linewidth=1)
    names = [f"{one.name}{' (attention)' if one.attention else ''}" for one in found]
    axes.set_yticks(range(len(found)), labels=names)
    axes.invert_yaxis()
    axes.set_xlabel("loss above the lowest of the four ways, as a share of what that learns (n = 4 seeds)")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
    return figure


if __name__ == "__main__":
    with matplotlib.rc_context(style.STYLE):
        draw(results()).savefig(FILE, dpi=110)
