"""The figure of a ladder: best rate against size with its band, and regret against cost for each next step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup_flax.report import style
from depthmup_flax.search.ladder.law import Size, known_laws

_POINTS = 41  # of the band
_SHOWN = 0.15  # relative to the lowest loss: a curve's higher part is cut
_NEAR = 0.045  # of the axis: sizes that share a label, as names at 45 degrees would overlap
_BESIDE = 0.4  # octaves of parameters between sizes that have equally many
_HEIGHT = 0.8  # of a curve, in units of the distance between sizes


def pictures_of(ladder: Any) -> dict[str, bytes]:
    """``ladder.png`` and ``ladder.svg`` of a `ladder.Ladder`."""
    with matplotlib.rc_context(style.STYLE):
        return style.pictures(draw(ladder), "ladder")


def draw(ladder: Any) -> Figure:
    """Left the rates, right what the next steps bring, if there are any."""
    figure, grid = style.canvas(1, 2 if ladder.steps else 1, width=2.9, height=2.8)
    _draw_rates(ladder, grid[0][0])
    if ladder.steps:
        _draw_steps(ladder, grid[0][1])
    return figure


def position(size: Size) -> float:
    """Log2 of width^2 depth, proportional to the parameters."""
    return math.log2(size.parameters)


def places_of(sizes: Sequence[Size]) -> list[float]:
    """Where sizes are drawn: at their `position`, those of equally many parameters beside each other, by width."""
    places = []
    for size in sizes:
        equal = sorted((one for one in sizes if one.parameters == size.parameters), key=lambda one: one.width)
        places.append(position(size) + _BESIDE * (equal.index(size) - (len(equal) - 1) / 2))
    return places


def _draw_rates(ladder: Any, axes: Axes) -> None:
    sizes = [*(one.search.size for one in ladder.searched), ladder.target]
    *places, of_target = places_of(sizes)
    colors = style.colors(range(len(places)))
    gap = min([abs(a - b) for a in places for b in [*places, of_target] if a != b] or [1.0])
    for place, one, color in zip(places, ladder.searched, colors.values(), strict=True):
        means = one.curve.losses.mean(0)
        above = (means - one.lowest) / max(ladder.learned if ladder.learned > 0 else abs(one.lowest), 1e-12)
        shown = np.isfinite(means) & (above < _SHOWN)
        axes.plot(place + _HEIGHT * gap * above[shown] / _SHOWN, one.curve.rates[shown], color=color, alpha=0.6)
        error = 1.96 * one.search.error
        axes.errorbar(place, one.search.rate, error, color=color, marker="o", capsize=3, zorder=5)
    _draw_band(ladder, axes)
    labels = _labels(places_of(sizes), sizes)
    names = [", ".join(near) for near in labels.values()]
    axes.set_xticks(list(labels), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_xlabel("width x depth, apart as log of width² depth")
    axes.yaxis.set_major_formatter(lambda value, _: f"{2.0**value:.2g}")
    axes.set_ylabel("best learning rate (log scale)")
    axes.set_title(
        f"Best rate and its 95 % band (rule {ladder.rule});\nbehind: loss above the lowest, to the right", fontsize=9
    )


def _labels(places: Sequence[float], sizes: Sequence[Size]) -> dict[float, list[str]]:
    """Place -> the sizes there, or so near that their names would overlap."""
    ordered = sorted(zip(places, map(str, sizes), strict=True))
    near = _NEAR * (ordered[-1][0] - ordered[0][0])
    labels = dict[float, list[str]]()
    for place, size in ordered:
        at = next((other for other in labels if place - other <= near), place)
        labels.setdefault(at, []).append(size)
    return labels


def _draw_band(ladder: Any, axes: Axes) -> None:
    """From the smallest size straight to the target, by the law."""
    law, searches = known_laws()[ladder.rule], [one.search for one in ladder.searched]
    first, last = searches[0].size, ladder.target
    share = np.linspace(0, 1, _POINTS)
    way = lambda name: getattr(first, name) * (getattr(last, name) / getattr(first, name)) ** share
    found = [
        law.predict(searches, Size(width, depth, searches[-1].size.steps, searches[-1].size.batch_size))
        for width, depth in zip(way("width"), way("depth"), strict=True)
    ]
    at = position(first) + (position(last) - position(first)) * share
    low, high = np.array([one.interval for one in found]).T
    axes.fill_between(at, low, high, color="0.5", alpha=0.2, linewidth=0)
    axes.plot(at, [one.mean for one in found], color="0.3", linestyle="--", linewidth=1)
    low, high = ladder.prediction.interval
    mean = ladder.prediction.mean
    axes.errorbar(
        position(last), mean, [[mean - low], [high - mean]], color="black", marker="*", markersize=12, capsize=3
    )


def _draw_steps(ladder: Any, axes: Axes) -> None:
    axes.axhline(100 * ladder.regret.mean, color="0.45", linestyle="--", linewidth=1)
    best, regrets = ladder.next, {math.log2(one.cost): 100 * one.regret.mean for one in ladder.steps}
    for one in ladder.steps:
        axes.plot(100 * one.cost, 100 * one.regret.mean, "o", color="C0", markersize=10 if one is best else 5)
    for place, names in _labels(list(regrets), [one.size for one in ladder.steps]).items():
        axes.annotate(
            ", ".join(names),
            (100 * 2.0**place, regrets[place]),
            xytext=(2, 5),
            textcoords="offset points",
            rotation=45,
            rotation_mode="anchor",
            fontsize=8,
        )
    axes.set_xscale("log")
    style.plain_numbers(axes.xaxis)
    axes.margins(x=0.2)  # room for the last name
    axes.set_xlabel("cost, % of a run of the target (log scale)")
    axes.set_ylabel("expected regret, %")
    axes.set_ylim(0, 115 * ladder.regret.mean)
    axes.set_title("One more size; dashed: without", fontsize=9)
