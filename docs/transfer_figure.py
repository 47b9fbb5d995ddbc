"""Writes transfer.png, the README's figure: python docs/transfer_figure.py

Loss against learning rate at four depths under muP and Depth-muP; records: reproduction/lr_width_depth_mlp-cpu.
"""

from __future__ import annotations

import pathlib

import matplotlib
from matplotlib.figure import Figure

from depthmup_flax.records.table import read_sweep
from depthmup_flax.report.make_report import analyses

HERE = pathlib.Path(__file__).parent
PANELS = {"mup": "muP", "depth_mup": "Depth-muP"}
WIDTH, TOP = 32, 2.35


def main() -> None:
    """Draws the figure."""
    analysis, _ = analyses(read_sweep([HERE / "reproduction" / "lr_width_depth_mlp-cpu"]))
    matplotlib.rcParams["font.size"] = 11  # readable on a phone, where the figure is 9 cm wide
    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    colors = matplotlib.colormaps["viridis_r"]
    for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), PANELS.items(), strict=True):
        (variant,) = (variant for variant in analysis.variants if variant.name == name)
        rows = [row for row in variant.rows if row.curve.width == WIDTH]
        for i, row in enumerate(rows):
            curve, color = row.curve, colors(0.1 + 0.9 * i / (len(rows) - 1))
            means, deviations = curve.losses.mean(0), curve.losses.std(0, ddof=1)
            if not row.trains:
                continue
            axes.plot(curve.x, means, color=color, marker="o", markersize=3.5, label=f"depth {curve.depth}")
            axes.fill_between(curve.x, means - deviations, means + deviations, color=color, alpha=0.2, linewidth=0)
        axes.axvline(2**variant.base.optimum.at.value, color="0.45", linestyle="--", linewidth=1.2)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="learning rate", xlim=(2**-12.4, 2**-5 * 1.2), ylim=(1.85, TOP))
        axes.grid(alpha=0.25)
        axes.set_title(title)
        untrained = " and ".join(str(row.curve.depth) for row in rows if not row.trains)
        if not all(row.trains for row in rows):
            axes.text(
                0.97, 0.97, f"{untrained}\ndo not\ntrain", ha="right", va="top", transform=axes.transAxes, fontsize=9
            )
    axes.legend(fontsize=9, loc="lower left", handlelength=1.2, borderpad=0.3, labelspacing=0.3)
    figure.axes[0].set_ylabel("training loss")
    figure.savefig(HERE / "transfer.png", dpi=200)


if __name__ == "__main__":
    main()
