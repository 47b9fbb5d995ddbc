"""The best hyperparameters in a proxy's records, and how certain they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.errors import InputError
from depthmup_flax.records import COMPLETED, LEARNING_RATE, SEED, Record
from depthmup_flax.report.optimum import find_optimum

_WITHIN = 0.01  # relative difference of losses that counts as equally good


@dataclasses.dataclass(frozen=True)
class Choice:
    """The optimum of a tuned proxy.

    Attributes:
      values: dotted field -> its best value; the learning rate is the vertex of a parabola in its logarithm.
      loss: lowest mean loss of the proxy on the grid.
      interval: 95 % interval of the best learning rate, from resampled seeds; ``None`` with fewer than two seeds or an
        optimum at the edge of the grid.
      as_good: lowest and highest rate of the grid whose mean loss is within 1 % of the best.
      seeds: number of seeds.
      flag: the edges of the grid at which the optimum lies; empty if it lies inside.
    """

    values: dict[str, float]
    loss: float
    interval: tuple[float, float] | None
    as_good: tuple[float, float]
    seeds: int
    flag: str


def best(records: Sequence[Record]) -> Choice:
    """The optimum of a proxy's records: lowest mean training loss over seeds, then a parabola in log2 of the rate.

    Raises:
      InputError: every run diverged.
    """
    seeds = sorted({record.seed for record in records})
    curves: dict[tuple[tuple[str, float], ...], dict[float, dict[int, float]]] = {}
    for record in records:
        others = tuple((path, value) for path, value in record.point.items() if path not in (LEARNING_RATE, SEED))
        loss = record.train_loss_avg if record.status == COMPLETED else None
        by_seed = curves.setdefault(others, {}).setdefault(record.point[LEARNING_RATE], {})
        by_seed[record.seed] = math.nan if loss is None else loss
    optima = []
    for others, curve in curves.items():
        rates = np.array(sorted(curve))
        losses = np.array([[curve[rate].get(seed, math.nan) for rate in rates] for seed in seeds])
        optimum = find_optimum(np.log2(rates), losses)
        if optimum is not None:
            optima.append((optimum.loss.value, others, rates, losses.mean(0), optimum))
    if not optima:
        raise InputError(
            "every run of the proxy diverged: set a lower optimizer.learning_rate, from which the search starts, or a "
            "longer optimizer.warmup_steps."
        )
    loss, others, rates, means, optimum = min(optima, key=lambda entry: entry[0])
    as_good = rates[means <= loss * (1 + _WITHIN)]
    interval = optimum.at.interval
    return Choice(
        values={LEARNING_RATE: float(2**optimum.at.value), **dict(others)},
        loss=loss,
        interval=None if interval is None else (2 ** interval[0], 2 ** interval[1]),
        as_good=(float(as_good.min()), float(as_good.max())),
        seeds=len(seeds),
        flag=", ".join(filter(None, (optimum.flag, *_edges(dict(others), records)))),
    )


def _edges(values: Mapping[str, float], records: Sequence[Record]) -> list[str]:
    """Names the values that lie at an end of their axis."""
    axes = {path: {record.point[path] for record in records} for path in values}
    at_end = [path for path, axis in axes.items() if len(axis) > 1 and values[path] in (min(axis), max(axis))]
    return [f"{path.rpartition('.')[2]} at the end of its grid" for path in at_end]


def describe(choice: Choice, proxy: ConfigDict) -> str:
    """The optimum, its number of seeds and its uncertainty, in sentences."""
    rate = choice.values[LEARNING_RATE]
    others = "".join(f", {path} {value:.4g}" for path, value in choice.values.items() if path != LEARNING_RATE)
    sizes = f"width {proxy.model.width}, depth {proxy.model.depth}"
    lines = [
        f"Best on the proxy ({sizes}): {LEARNING_RATE} {rate:.4g}{others}; training loss {choice.loss:.4f}, "
        f"n = {choice.seeds} seeds."
    ]
    if choice.interval is not None:
        low, high = choice.interval
        lines.append(f"95 % interval of the learning rate, from resampled seeds: {low:.3g} to {high:.3g}.")
    elif choice.seeds < 2:
        lines.append("One seed gives no interval: use --seeds=3.")
    if choice.flag:
        lines.append(f"Warning: the optimum lies at the edge of the grid ({choice.flag}). Start from other values.")
    low, high = choice.as_good
    lines.append(f"Learning rates from {low:.3g} to {high:.3g} are within {_WITHIN:.0%} of the best loss.")
    return "\n".join(lines)
