"""The searches of a tuner: one hyperparameter on a grid, several by rounds of random points."""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.report.loss_surfaces import LOSSES, axis_name, number
from depthmup_flax.report.optimum import Estimate, resampled_means
from depthmup_flax.search.sweep.grid import Run, extension, make_run
from depthmup_flax.search.tune.choice import COMMAND, Advice, Choice, best
from depthmup_flax.search.tune.ranges import Ranges, octave_grid, present_value, unread
from depthmup_flax.storage.records import LEARNING_RATE, ROUNDS, SEED, Record
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.util.errors import InputError

log = logging.getLogger(__name__)

SHRINK = (1.0, 0.5, 0.25)  # sizes of the boxes, in parts of the ranges
_OF_X = 0.5  # times that for the hyperparameter of the first round, whose best value is known to an octave
TRIALS = 48  # 16 in each
EXTEND = 4  # values that may be added at each end of a grid
CONFIRM = 8  # seeds of the last round
_EDGE = 0.05  # share of a range, on a log scale, at each end

Point = tuple[float, ...]  # a value for each tuned field


@dataclasses.dataclass(frozen=True)
class Search:
    """What a search trains: a sweep over the values of a first round, and then what `more` adds.

    Attributes:
      ranges: of the tuned fields; the learning rate, or else the first of them, is varied in the first round.
      seeds: of the runs.
      widen: the most values that are added to the grid.
    """

    ranges: Ranges
    seeds: Sequence[int]
    widen: int = EXTEND
    figure: ClassVar[str] = "tune"  # of its sweep

    @property
    def x(self) -> str:
        """The field of the first round."""
        return LEARNING_RATE if LEARNING_RATE in self.ranges else next(iter(self.ranges))

    @property
    def extend(self) -> int:
        """How often `more` is called."""
        return self.widen

    def grid(self, proxy: ConfigDict) -> dict[str, tuple[Any, ...]]:
        """The first round: field -> values; ``proxy``: the config of its runs."""
        return {self.x: octave_grid(*self.ranges[self.x]), SEED: tuple(self.seeds)}

    def more(self, config: ConfigDict, runs: Sequence[Run], done: Mapping[str, Record]) -> list[tuple[list[Run], str]]:
        """Values beyond a grid whose best one is at its edge; see `depthmup_flax.search.sweep.runner.sweep`."""
        return extension(config, runs, done)

    def choice(self, config: ConfigDict, records: Sequence[Record], advice: Advice = COMMAND) -> Choice:
        """The best values; ``config``: of the sweep."""
        return best(records, self.x, advice, config.objective)


@dataclasses.dataclass(frozen=True)
class Rounds(Search):
    """A search over several hyperparameters: random points in boxes that shrink around good ones.

    It begins with a grid of ``x``, with all seeds, which is extended as in `Search`. Each of `SHRINK` is a round of
    points in a box, all with one seed. The first box is around the best of the grid, the next ones are around the mean,
    in logarithms, of the best quarter of a round (the cross-entropy method: Rubinstein, Methodol. Comput. Appl. Probab.
    1, 1999), which is less subject to chance than the best point. The last round trains this mean and the best of the
    grid with `CONFIRM` seeds that the search has not seen. The mean is the choice if its gain is resolved: if the 95 %
    interval is above 0.

    Attributes:
      trials: number of points in all boxes, as many in each.
    """

    trials: int = TRIALS
    figure: ClassVar[str] = ROUNDS

    @property
    def extend(self) -> int:
        """See `Search`."""
        return self.widen + len(SHRINK) + 1

    def grid(self, proxy: ConfigDict) -> dict[str, tuple[Any, ...]]:
        """See `Search`; the other fields have the config's value, or the nearest one in their range."""
        nearest = lambda path, low, high: min(max(present_value(proxy, path), low), high)
        others = {path: (nearest(path, *ends),) for path, ends in self.ranges.items()}
        return {**others, **super().grid(proxy)}

    def more(self, config: ConfigDict, runs: Sequence[Run], done: Mapping[str, Record]) -> list[tuple[list[Run], str]]:
        """See `Search`: the round after ``runs``."""
        records, each = [done[run.hash] for run in runs], self.trials // len(SHRINK)
        size, ranges = len(self._on_grid(config, records)), self._extended(config, records)
        k = (len(records) - size) // each
        most = (len(self.grid(config.base)[self.x]) + self.widen) * len(self.seeds)
        if len(records) == size < most and (wider := super().more(config, runs, done)):
            return wider
        of_grid = center = self._best_of_grid(config, records)
        if k:
            center = self._center(records[size + (k - 1) * each : size + k * each], config.objective) or of_grid
        if k < len(SHRINK):
            draw = np.random.default_rng([self.seeds[0], k])
            points = self._box(center, ranges, SHRINK[k], each, draw)
            seeds: Sequence[int] = (self.seeds[k % len(self.seeds)],)
        else:
            points, seeds = [of_grid, center], self._fresh
        axes = list(runs[0].point)
        values = [{**self._named(point), SEED: seed} for seed in seeds for point in points]
        shown = ", ".join(f"{axis_name(path)} {number(value)}" for path, value in self._named(center).items())
        return [([make_run(config.base, axes, of_run) for of_run in values], f"{len(values)} runs around {shown}")]

    def choice(self, config: ConfigDict, records: Sequence[Record], advice: Advice = COMMAND) -> Choice:
        """See `Search`: the last mean, or the best of the grid."""
        fresh = sorted((r for r in records if r.seed in self._fresh), key=lambda record: record.seed)
        losses: dict[Point, list[float]] = {self._best_of_grid(config, records): []}
        for record in fresh:
            losses.setdefault(self._point(record), []).append(_loss(record, config.objective))
        of_grid, center = next(iter(losses)), list(losses)[-1]
        gain, low, high = _gain(losses[of_grid], losses[center])
        better = low > 0
        values = self._named(center if better else of_grid)
        warnings = [
            f"the best {path}, {value:.4g}, is near the end of its range, {ends[0]:.4g} to {ends[1]:.4g}. "
            + advice.beyond.format(path=path, value=value)
            for (path, ends), value in zip(self._extended(config, records).items(), values.values(), strict=True)
            if not _EDGE < math.log(value / ends[0]) / math.log(ends[1] / ends[0]) < 1 - _EDGE
        ]
        name, loss = axis_name(self.x), LOSSES[config.objective].capitalize()
        compared = (
            f"{loss} with fresh seeds, mean ± standard deviation: {_mean_and_deviation(losses[center])}; with the "
            f"{name} alone tuned: "
            f"{_mean_and_deviation(losses[of_grid])}. Gain {gain:.2g} (95 %: {low:.2g} to {high:.2g})."
        )
        if not better:
            compared += f" As it is not above 0, only the tuned {name} is taken."
        ordered = {self.x: values[self.x], **values}
        return Choice(ordered, None, {}, len(self._fresh), tuple(warnings), self.x, config.objective, compared)

    @property
    def _fresh(self) -> range:
        first = max(self.seeds) + 1
        return range(first, first + CONFIRM)

    def _on_grid(self, config: ConfigDict, records: Sequence[Record]) -> list[Record]:
        others = {path: values for path, values in self.grid(config.base).items() if path != self.x}
        return [record for record in records if all(record.point[path] in others[path] for path in others)]

    def _extended(self, config: ConfigDict, records: Sequence[Record]) -> Ranges:
        """The ranges, with the values by which the grid was extended."""
        of_grid = [record.point[self.x] for record in self._on_grid(config, records)]
        return {**self.ranges, self.x: (min(of_grid), max(of_grid))}

    def _best_of_grid(self, config: ConfigDict, records: Sequence[Record]) -> Point:
        values = best(self._on_grid(config, records), self.x, objective=config.objective).values
        return tuple(_four_digits(values[path]) for path in self.ranges)

    def _center(self, records: Sequence[Record], objective: str) -> Point | None:
        """The mean, in logarithms, of the best quarter of a round; ``None`` if all of them diverged."""
        ranked = sorted(records, key=lambda record: _loss(record, objective))[: max(1, len(records) // 4)]
        points = [self._point(record) for record in ranked if math.isfinite(_loss(record, objective))]
        return tuple(map(_four_digits, np.exp(np.log(points).mean(0)))) if points else None

    def _box(self, center: Point, ranges: Ranges, size: float, count: int, draw: np.random.Generator) -> list[Point]:
        """A Latin hypercube in the logarithms of values, in the box around ``center`` that lies in the ranges."""
        axes = len(center)
        places = (draw.permuted(np.tile(np.arange(count), (axes, 1)), axis=1) + draw.random((axes, count))) / count
        columns = []
        for place, middle, (path, ends) in zip(places, np.log(center), ranges.items(), strict=True):
            low, high = np.log(ends)
            half = size * (high - low) / 2 * (_OF_X if path == self.x else 1)
            columns.append(np.exp(np.interp(place, (0, 1), (max(low, middle - half), min(high, middle + half)))))
        return [tuple(map(_four_digits, point)) for point in np.transpose(columns)]

    def _point(self, record: Record) -> Point:
        return tuple(record.point[path] for path in self.ranges)

    def _named(self, point: Point) -> dict[str, float]:
        return dict(zip(self.ranges, point, strict=True))


def _loss(record: Record, objective: str) -> float:
    loss = record.loss(objective)
    return math.inf if loss is None else loss


def _four_digits(value: float) -> float:
    """As ``tuned.py`` has it, so that it was trained."""
    return float(f"{value:.4g}")


def _mean_and_deviation(losses: Sequence[float]) -> str:
    mean = statistics.fmean(losses)
    return f"{mean:.4g} ± {statistics.stdev(losses):.2g}" if math.isfinite(mean) else "diverged"


def _gain(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """The mean of what seeds gain, and its 95 % interval; infinite where the runs of one diverged."""
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        gain = math.inf if np.isfinite(after).all() else -math.inf
        return gain, gain, gain
    gains = np.subtract(before, after)
    estimate = Estimate(float(gains.mean()), resampled_means(gains), len(gains))
    return estimate.value, *(estimate.interval or ())


def search_of(ranges: Ranges, seeds: Sequence[int], trials: int = TRIALS, widen: int = EXTEND) -> Search:
    """A grid for one hyperparameter, `Rounds` for several; `InputError` for too few ``trials`` or a wrong ``widen``."""
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < len(SHRINK):
        raise InputError(f"--trials is {trials!r}: use a whole number of at least {len(SHRINK)}.")
    if not isinstance(widen, int) or widen < 0:
        raise InputError(f"extend is {widen!r}: use a whole number of at least 0.")
    return Rounds(ranges, seeds, widen, trials) if len(ranges) > 1 else Search(ranges, seeds, widen)


def without_unread(search: Search, experiment: Experiment) -> Search:
    """The search over the fields on which training depends; says which others are left out.

    Raises:
      InputError: none is left.
    """
    left_out = unread(experiment, search.ranges)
    if not left_out:
        return search
    ranges = {path: ends for path, ends in search.ranges.items() if path not in left_out}
    names = ", ".join(path.rpartition(".")[2] for path in left_out)
    sentence = f"the training of {experiment.config.model.name} does not depend on {names}"
    if not ranges:
        raise InputError(f"--tune: {sentence}. Name another hyperparameter, such as learning_rate.")
    log.info("%s: not tuned", sentence)
    return search_of(ranges, search.seeds, getattr(search, "trials", TRIALS), search.widen)
