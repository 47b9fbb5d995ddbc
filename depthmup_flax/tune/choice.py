"""The best hyperparameters in a proxy's records, and how certain they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.errors import InputError
from depthmup_flax.records import COMPLETED, LEARNING_RATE, SEED, Record
from depthmup_flax.report.optimum import find_optimum

_WITHIN = 0.01  # relative difference of losses that counts as equally good


@dataclasses.dataclass(frozen=True)
class Choice:
    """The optimum of a tuned proxy.

    ``interval`` is that of the best learning rate, 95 %, from resampled seeds: ``None`` for one seed or an optimum at
    the edge of the grid.
    """

    values: dict[str, float]  # dotted field -> its best value
    loss: float  # lowest mean loss on the grid
    interval: tuple[float, float] | None
    as_good: tuple[float, float]  # lowest and highest rate of the grid whose mean loss is within 1 % of the best
    seeds: int  # number of seeds
    flag: str  # the edges of the grid at which the optimum lies; empty if it lies inside


def best(records: Sequence[Record]) -> Choice:
    """The optimum of a proxy's records: lowest mean training loss over seeds, then a parabola in log2 of the rate.

    Raises:
      InputError: every run diverged.
    """
    seeds = sorted({record.seed for record in records})
    curves: dict[tuple[tuple[str, float], ...], dict[tuple[float, int], float | None]] = {}
    for record in records:
        others = tuple((path, value) for path, value in record.point.items() if path not in (LEARNING_RATE, SEED))
        loss = record.train_loss_avg if record.status == COMPLETED else None
        curves.setdefault(others, {})[record.point[LEARNING_RATE], record.seed] = loss
    optima = []
    for others, curve in curves.items():
        rates = np.array(sorted({rate for rate, _ in curve}))
        losses = np.array([[curve.get((rate, seed)) for rate in rates] for seed in seeds], np.float64)  # None: NaN
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
    flags = [optimum.flag]
    for path, value in others:
        axis = {record.point[path] for record in records}
        if len(axis) > 1 and value in (min(axis), max(axis)):
            flags.append(f"{path.rpartition('.')[2]} at the end of its grid")
    interval = optimum.at.interval
    return Choice(
        values={LEARNING_RATE: float(2**optimum.at.value), **dict(others)},
        loss=loss,
        interval=None if interval is None else (2 ** interval[0], 2 ** interval[1]),
        as_good=(float(as_good.min()), float(as_good.max())),
        seeds=len(seeds),
        flag=", ".join(filter(None, flags)),
    )


def describe(choice: Choice, proxy: ConfigDict) -> str:
    """The optimum, its number of seeds and its uncertainty, in sentences."""
    values = ", ".join(f"{path} {value:.4g}" for path, value in choice.values.items())
    lines = [
        f"Best on the proxy (width {proxy.model.width}, depth {proxy.model.depth}): {values}; training loss "
        f"{choice.loss:.4f}, n = {choice.seeds} seeds."
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
