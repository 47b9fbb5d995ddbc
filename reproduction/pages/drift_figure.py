"""Writes drift.png: python -m reproduction.pages.drift_figure

Training loss against learning rate at four widths with a random readout and with one at zero; records:
reproduction/drift/records.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from reproduction.drift import table
from reproduction.drift.cells import DEPTH, RANDOM, ZERO, Cell
from reproduction.pages import figure_look

HERE = pathlib.Path(__file__).parent
RECORDS = HERE.parent / "drift" / "records"
PANELS = {"random readout": RANDOM, "readout at zero": ZERO}
COLORS = {32: "#c9b400", 64: "#5ec962", 128: "#21918c", 256: "#3b528b"}
LOW, TOP = 1.72, 2.12


def main() -> None:
    """Draws the figure."""
    figure, axes_of = figure_look.panels(2, 2.9, sharey=True)
    for axes, (title, start) in zip(axes_of, PANELS.items(), strict=True):
        result = table.read(RECORDS, Cell("mlp", "adam", start))
        assert result is not None, f"the cell of {title} was not run"
        for row in result.variant.rows:
            if row.curve.depth == DEPTH:
                _draw(axes, row)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="learning rate", title=title, ylim=(LOW, TOP), xticks=[2.0**k for k in (-12, -10, -8, -6)])
        axes.grid(alpha=0.25)
    axes_of[0].set_ylabel("training loss")
    figure.legend(*axes_of[1].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(HERE / "drift.png", dpi=200)


def _draw(axes: Any, row: table.Row) -> None:
    """A width's mean over seeds, with the standard deviation, and its best rate."""
    curve, color = row.curve, COLORS[row.curve.width]
    means, deviations = curve.losses.mean(0), curve.losses.std(0, ddof=1)
    axes.plot(curve.x, means, color=color, marker="o", markersize=3, label=_label(curve.width))
    axes.fill_between(curve.x, means - deviations, means + deviations, color=color, alpha=0.2, linewidth=0)
    assert row.optimum is not None
    axes.plot(2**row.optimum.at.value, np.nanmin(means), color=color, marker="v", markersize=8)


def _label(width: int) -> str:
    return f"width {width}" if width == min(COLORS) else str(width)


if __name__ == "__main__":
    main()
