"""Writes transfer.png, the README's figure: python -m reproduction.pages.transfer_figure

Loss against learning rate at several sizes without and with Depth-muP; records: reproduction/cifar10-cpu.
"""

from __future__ import annotations

import math
import pathlib

import matplotlib
from matplotlib.axes import Axes

from depthmup_flax.report.sweep_report import analysis_of
from depthmup_flax.report.transfer import Row
from depthmup_flax.storage.sweep_records import read_sweep
from reproduction.pages import figure_look

HERE = pathlib.Path(__file__).parent
PANELS = {"sp": "without the rule", "depth_mup": "Depth-muP"}
LOW, TOP = 1.31, 1.72
CHANCE = math.log(10)
# Depth of the wide networks -> color, marker and line.
WIDE = {4: ("#e69f00", "^", "--"), 16: ("#d55e00", "s", "-")}


def label(row: Row) -> str:
    """The size of a network, for the legend."""
    width, depth = row.size
    return f"depth {depth}" + (f", width {width}" if width > 64 else "")


def draw(axes: Axes, rows: list[Row]) -> None:
    """The curves of the networks that train, and the names of the others."""
    depths = sorted({row.curve.depth for row in rows if row.curve.width == 64})
    for row in rows:
        curve = row.curve
        narrow = matplotlib.colormaps["viridis_r"](0.25 + 0.75 * depths.index(curve.depth) / 2), "o", "-"
        color, marker, line = WIDE[curve.depth] if curve.width > 64 else narrow
        means, deviations = curve.losses.mean(0), curve.losses.std(0, ddof=1)
        learns = means < CHANCE
        if row.trains:
            look = {"color": color, "marker": marker, "markersize": 3.5, "linestyle": line, "label": label(row)}
            axes.plot(curve.x[learns], means[learns], **look)
            low, high = (means - deviations)[learns], (means + deviations)[learns]
            axes.fill_between(curve.x[learns], low, high, color=color, alpha=0.2, linewidth=0)
    untrained = ", ".join(label(row) for row in rows if not row.trains)
    if untrained:
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        axes.text(0.97, 0.97, f"{untrained}\ndoes not train", ha="right", va="top", transform=axes.transAxes, bbox=box)


def main() -> None:
    """Draws the figure."""
    analysis = analysis_of(read_sweep([HERE.parent / "records" / "cifar10-cpu"]))
    figure, axes_of = figure_look.panels(2, 3.4, sharey=True)
    for axes, (name, title) in zip(axes_of, PANELS.items(), strict=True):
        (variant,) = (variant for variant in analysis.variants if variant.name == name)
        draw(axes, sorted(variant.rows, key=lambda row: row.size))
        axes.axvline(2**variant.base.optimum.at.value, color="0.45", linestyle="--", linewidth=1.2)
        axes.set_xscale("log", base=2)
        axes.set(
            xlabel="learning rate",
            title=title,
            xlim=(2**-13.3, 2**-4.3),
            ylim=(LOW, TOP),
            xticks=[2.0**k for k in (-12, -9, -6)],
        )
        axes.grid(alpha=0.25)
    handles = {line.get_label(): line for line in axes_of[1].get_lines()[:-1]}
    look = {"ncols": 2, "handlelength": 1.4, "columnspacing": 1.2, "frameon": False}
    figure.legend(handles=list(handles.values()), loc="outside upper center", **look)
    axes_of[0].set_ylabel("training loss")
    figure.savefig(HERE.parents[1] / "docs" / "transfer.png", dpi=200)


if __name__ == "__main__":
    main()
