"""The best hyperparameters in a proxy's records, and their uncertainty."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.report.curves import LOSSES, axis_name, number
from depthmup_flax.report.optimum import NEXT_TO_DIVERGENCE, find_optimum
from depthmup_flax.report.sweep_report import Report, make_report
from depthmup_flax.report.transfer import exploded
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED, TRAIN, Record, flat, short_names
from depthmup_flax.util.errors import InputError

if TYPE_CHECKING:
    from depthmup_flax.search.ladder.ladder import Ladder


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


def _none_finite(records: Sequence[Record]) -> str:
    """Why a search has no optimum; a loss that is not finite before the first update is none of the rate's.

    Nor is one that only the evaluation has.
    """
    if all(record.diverged_at_step == 1 for record in records):
        return (
            "every run diverged at step 1, before any update: the loss of the first batch is not finite, whatever the "
            "learning rate. Look at the loss, the network and its numbers' precision."
        )
    evaluated = {record.diverged_in for record in records}
    if evaluated <= {"the test loss", "the validation loss"}:
        which = " or ".join(sorted(map(str, evaluated)))
        return (
            f"{which} is not finite in every run, the training loss is: look at that data, and at what evaluation does "
            "otherwise, such as running statistics."
        )
    return "every run diverged: lower optimizer.learning_rate, or lengthen optimizer.warmup_steps."


def best_choice(records: Sequence[Record], x: str = LEARNING_RATE, objective: str = TRAIN) -> Choice:
    """The optimum of a proxy's records: lowest mean ``objective`` over seeds, then a parabola in log2 of ``x``."""
    seeds = sorted({record.seed for record in records})
    curves: dict[tuple[tuple[str, Any], ...], dict[tuple[float, int], float | None]] = {}
    for record in records:
        others = tuple((path, value) for path, value in record.point.items() if path not in (x, SEED))
        loss = record.loss(objective)
        curves.setdefault(others, {})[record.point[x], record.seed] = loss
    firsts = [record.train_loss_slices[0] for record in records if record.train_loss_slices]
    started = [loss for loss in firsts if loss is not None]
    most = exploded(float(np.median(started))) if started else math.inf
    optima = []
    for others, curve in curves.items():
        rates = np.array(sorted({rate for rate, _ in curve}))
        losses = np.array([[curve.get((rate, seed)) for rate in rates] for seed in seeds], np.float64)  # None: NaN
        optimum = find_optimum(np.log2(rates), losses, most=most)
        if optimum is not None:
            optima.append((optimum.loss.value, others, rates, losses.mean(0), optimum))
    if not optima:
        raise InputError(_none_finite(records))
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
                + search_beyond(path, value)
            )
    interval = optimum.at.interval
    if interval is not None and (2 ** interval[0] < rates[0] or 2 ** interval[1] > rates[-1]):
        warnings.append(
            f"the interval of the best {axis_name(x)} reaches beyond the values that were tried, {rates[0]:.3g} to "
            f"{rates[-1]:.3g}: the seeds do not agree on an optimum. Use more seeds or longer runs."
        )
    return Choice(
        values={x: float(2**optimum.at.value), **dict(others)},
        interval=None if interval is None else (2 ** interval[0], 2 ** interval[1]),
        around=around,
        seeds=len(seeds),
        warnings=tuple(warnings),
        x=x,
        objective=objective,
    )


_UNKNOWN = 1000  # the ratio of an interval's ends beyond which it says nothing


def search_beyond(path: str, value: float) -> str:
    """The remedy for an optimum at the end of what was searched."""
    return f"Search around it: set {path} to {value:.4g}, in another workdir."


def _unstable(around: Mapping[float, float], loss: float, x: str) -> str:
    """Says that a run diverged, or that the loss is too high for a fit, next to the best x."""
    lower, best, higher = around
    at = higher if not around[higher] <= around[lower] else lower  # NaN: diverged
    problem = f"the loss is {around[at]:.4g}, against {loss:.4g}" if math.isfinite(around[at]) else "a run diverges"
    advice = f" Consider {best / 2:.4g}, an octave lower." if at == higher else ""
    return (
        f"next to the best {axis_name(x)}, at {at:.4g}, {problem}: training is close to instability there. The optimum "
        f"is a point of the grid, known to half a step.{advice}"
    )


def describe(choice: Choice, proxy: ConfigDict) -> str:
    """The optimum, its number of seeds and its uncertainty, in sentences."""
    name = axis_name(choice.x)
    values = ", ".join(f"{path} {number(value)}" for path, value in choice.values.items())
    size, plural = f"width {proxy.model.width}, depth {proxy.model.depth}", "s" * (choice.seeds > 1)
    lines = [f"Best on the proxy ({size}): {values}; n = {choice.seeds} seed{plural}."]
    if choice.interval is not None:
        low, high = choice.interval
        if high > _UNKNOWN * low:
            lines.append(f"The seeds do not agree on the {name}: its 95 % interval has no end. Use more of them.")
        else:
            lines.append(f"95 % interval of the {name}, from resampled seeds: {low:.3g} to {high:.3g}.")
    elif choice.seeds < 2:
        lines.append("One seed gives no interval: use more seeds.")
    if choice.around:
        shown = lambda mean: f"{mean:.3g}" if math.isfinite(mean) else "diverged"
        losses = ", ".join(f"{shown(mean)} at {rate:.3g}" for rate, mean in choice.around.items())
        lines.append(f"{LOSSES[choice.objective].capitalize()} at the nearest {name}s of the grid: {losses}.")
    lines += [choice.compared] if choice.compared else []
    lines += [f"Warning: {warning}" for warning in choice.warnings]
    return "\n".join(lines)


class Best(Mapping[str, Any]):
    """The best hyperparameters of a search by name, ``study.train(width=512, **best)``; print explains them.

    Attributes:
      fields: dotted field -> value, with the four digits that are shown.
      interval: 95 % interval of the first of them, from resampled seeds; ``None`` where it is not known.
      records: of all runs of the search, each a flat dictionary, see `depthmup_flax.storage.sweep_records.flat`.
      directory: that holds them.
      wall_time_s: of all runs, in seconds.
      ladder: how far the rate carries to a target, see `depthmup_flax.search.tune.carry`; ``None`` without a target, or
        if it is not known.
      remark: a sentence, whether its rate is taken.
    """

    def __init__(self, choice: Choice, proxy: ConfigDict, records: Sequence[Record], directory: pathlib.Path) -> None:
        self._text = describe(choice, proxy)
        shown = lambda value: float(f"{value:.4g}") if isinstance(value, float) else value
        self.fields = {path: shown(value) for path, value in choice.values.items()}
        self._short = {name: path for path, name in short_names(choice.values).items()}
        self.interval, self.directory = choice.interval, directory
        self.wall_time_s = sum(record.wall_time_s for record in records)
        self.records = flat_records(records)
        self.ladder: Ladder | None = None
        self.remark = ""

    def report(self, out: str | os.PathLike[str] | None = None, *, loss: str | None = None) -> Report:
        """The report of all runs; ``out`` and ``loss``: see `depthmup_flax.make_report`."""
        return make_report([self.directory], out, loss=loss)

    def __getitem__(self, name: str) -> Any:
        return self.fields[self._short[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._short)

    def __len__(self) -> int:
        return len(self._short)

    def __repr__(self) -> str:
        statement = [] if self.ladder is None else ["", *self.ladder.statement]
        return "\n".join([self._text, *statement, *([self.remark] if self.remark else [])])

    def _repr_html_(self) -> str | None:
        return None if self.ladder is None else self.ladder.html(repr(self))


def flat_records(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The records as flat dictionaries with short names."""
    names = short_names(records[0].point) if records else {}
    return [flat(record, names) for record in records]
