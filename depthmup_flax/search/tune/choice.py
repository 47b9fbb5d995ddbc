"""The best hyperparameters in a proxy's records, and their uncertainty."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.report.loss_surfaces import LOSSES, axis_name, number
from depthmup_flax.report.optimum import NEXT_TO_DIVERGENCE, find_optimum
from depthmup_flax.storage.records import LEARNING_RATE, SEED, TRAIN, Record
from depthmup_flax.util.errors import InputError


@dataclasses.dataclass(frozen=True)
class Choice:
    """The optimum of a tuned proxy.

    ``interval`` is that of the best ``x``, 95 %, from resampled seeds: ``None`` for one seed or an optimum at the edge
    of the grid.
    """

    values: dict[str, Any]  # dotted field -> its best value
    interval: tuple[float, float] | None
    around: dict[float, float]  # the best x of the grid and its neighbors -> mean loss, NaN if one diverged
    seeds: int  # number of seeds
    warnings: tuple[str, ...]  # the edges of the grid at which the optimum lies, and an instability next to it
    x: str = LEARNING_RATE  # the field whose optimum is interpolated
    objective: str = TRAIN  # the loss, of `OBJECTIVES`
    compared: str = ""  # a sentence: the losses of a search, and those of its first round


@dataclasses.dataclass(frozen=True)
class Advice:
    """What to type: by default on the command line."""

    beyond: str = "Search around it with --config.{path}={value:.4g} and another --workdir."
    more_seeds: str = "use --seeds=3"


COMMAND = Advice()
ALL_DIVERGED = (
    "every run of the proxy diverged: set a lower optimizer.learning_rate, from which the search starts, or a longer "
    "optimizer.warmup_steps."
)


def best(records: Sequence[Record], x: str = LEARNING_RATE, advice: Advice = COMMAND, objective: str = TRAIN) -> Choice:
    """The optimum of a proxy's records: lowest mean ``objective`` over seeds, then a parabola in log2 of ``x``.

    Raises:
      InputError: every run diverged.
    """
    seeds = sorted({record.seed for record in records})
    curves: dict[tuple[tuple[str, Any], ...], dict[tuple[float, int], float | None]] = {}
    for record in records:
        others = tuple((path, value) for path, value in record.point.items() if path not in (x, SEED))
        loss = record.loss(objective)
        curves.setdefault(others, {})[record.point[x], record.seed] = loss
    optima = []
    for others, curve in curves.items():
        rates = np.array(sorted({rate for rate, _ in curve}))
        losses = np.array([[curve.get((rate, seed)) for rate in rates] for seed in seeds], np.float64)  # None: NaN
        optimum = find_optimum(np.log2(rates), losses)
        if optimum is not None:
            optima.append((optimum.loss.value, others, rates, losses.mean(0), optimum))
    if not optima:
        raise InputError(ALL_DIVERGED)
    loss, others, rates, means, optimum = min(optima, key=lambda entry: entry[0])
    near = slice(max(optimum.grid - 1, 0), optimum.grid + 2)
    around = dict(zip(rates[near].tolist(), means[near].tolist(), strict=True))
    warnings = [_unstable(around, loss, x)] if optimum.flag == NEXT_TO_DIVERGENCE else []
    grids = {path: {record.point[path] for record in records} for path, _ in others} | {x: set(rates)}
    for path, value in ((x, rates[optimum.grid]), *others):
        if not all(isinstance(other, (int, float)) for other in grids[path]):
            continue
        low, high = min(grids[path]), max(grids[path])
        if low < high and value in (low, high) and value != 0:  # no weight decay is not an edge
            end, beyond = ("lowest", "lower") if value == low else ("highest", "higher")
            warnings.append(
                f"the best {path}, {value:.4g}, is the {end} of the grid: a {beyond} one may be better. "
                + advice.beyond.format(path=path, value=value)
            )
    interval = optimum.at.interval
    return Choice(
        values={x: float(2**optimum.at.value), **dict(others)},
        interval=None if interval is None else (2 ** interval[0], 2 ** interval[1]),
        around=around,
        seeds=len(seeds),
        warnings=tuple(warnings),
        x=x,
        objective=objective,
    )


def _unstable(around: Mapping[float, float], loss: float, x: str) -> str:
    """Says that a run diverged, or that the loss is many times the lowest, next to the best x."""
    lower, best, higher = around
    at = higher if not around[higher] <= around[lower] else lower  # NaN: diverged
    problem = f"the loss is {around[at] / loss:.0f} times as high" if math.isfinite(around[at]) else "a run diverges"
    advice = f" Consider {best / 2:.4g}, an octave lower." if at == higher else ""
    return (
        f"next to the best {axis_name(x)}, at {at:.4g}, {problem}: training is close to instability there. The optimum "
        f"is a point of the grid, known to half a step.{advice}"
    )


def describe(choice: Choice, proxy: ConfigDict, advice: Advice = COMMAND) -> str:
    """The optimum, its number of seeds and its uncertainty, in sentences."""
    name = axis_name(choice.x)
    values = ", ".join(f"{path} {number(value)}" for path, value in choice.values.items())
    lines = [
        f"Best on the proxy (width {proxy.model.width}, depth {proxy.model.depth}): {values}; n = {choice.seeds} seeds."
    ]
    if choice.interval is not None:
        low, high = choice.interval
        lines.append(f"95 % interval of the {name}, from resampled seeds: {low:.3g} to {high:.3g}.")
    elif choice.seeds < 2:
        lines.append(f"One seed gives no interval: {advice.more_seeds}.")
    losses = (
        f"{f'{mean:.3g}' if math.isfinite(mean) else 'diverged'} at {rate:.3g}" for rate, mean in choice.around.items()
    )
    if choice.around:
        loss = LOSSES[choice.objective].capitalize()
        lines.append(f"{loss} at the nearest {name}s of the grid: {', '.join(losses)}.")
    lines += [choice.compared] if choice.compared else []
    lines += [f"Warning: {warning}" for warning in choice.warnings]
    return "\n".join(lines)
