"""Writes transfer.png, the README's figure: python -m reproduction.pages.transfer_figure

Test loss against learning rate at two depths without and with Depth-muP; records: reproduction/depth/records.
"""

from __future__ import annotations

import pathlib
from collections import defaultdict

import numpy as np

from depthmup_flax.storage.sweep_records import LEARNING_RATE, read_sweep
from reproduction.depth.runs import CELLS, CHANCE, RECORDS
from reproduction.pages import figure_look

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PANELS = {"without the rule": ("shallow", "deep, sp"), "Depth-muP": ("shallow", "deep")}
LOOKS = {"shallow": ("#5ec962", "o", "depth 4"), "deep": ("#2a6f8e", "s", "depth 16"), "deep, sp": ("#2a6f8e", "s", "")}
TUNED, LOW, TOP = 2.0**-7, 1.94, 2.24


def main() -> None:
    """Draws the figure."""
    of: dict[tuple[str, int, int], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for directory in sorted(RECORDS.glob("[ac]*/1000")):  # around, cells
        for record in read_sweep([directory]).records:
            key = record.point["parametrization.preset"], record.width, record.depth
            loss = record.loss("test")
            of[key][record.point[LEARNING_RATE]].append(np.inf if loss is None else loss)
    figure, axes_of = figure_look.panels(2, 2.9, sharey=True)
    for axes, (title, names) in zip(axes_of, PANELS.items(), strict=True):
        for name in names:
            color, marker, label = LOOKS[name]
            losses = {rate: np.array(values) for rate, values in of[CELLS[name][:3]].items()}
            rates = sorted(rate for rate, values in losses.items() if values.mean() < CHANCE)
            means = np.array([losses[rate].mean() for rate in rates])
            deviations = np.array([losses[rate].std(ddof=1) for rate in rates])
            axes.plot(rates, means, color=color, marker=marker, markersize=3.5, label=label)
            axes.fill_between(rates, means - deviations, means + deviations, color=color, alpha=0.2, linewidth=0)
        axes.axvline(TUNED, color="0.45", linestyle="--", linewidth=1.2)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="learning rate", title=title, ylim=(LOW, TOP), xticks=[2.0**k for k in (-10, -8, -6)])
        axes.grid(alpha=0.25)
    axes_of[0].set_ylabel("test loss")
    figure.legend(*axes_of[1].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(DOCS / "transfer.png", dpi=200)


if __name__ == "__main__":
    main()
