"""The searches of a tuner: one hyperparameter on a grid, several by rounds of random points."""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import get_field
from depthmup_flax.engine.experiment import Experiment
from depthmup_flax.records.table import LEARNING_RATE, SEED, Record
from depthmup_flax.report.loss_surfaces import LOSSES, axis_name, number
from depthmup_flax.sweep.grid import Run, make_run
from depthmup_flax.sweep.grid_extension import extension
from depthmup_flax.tune.choice import ALL_DIVERGED, COMMAND, Advice, Choice, best
from depthmup_flax.tune.ranges import Ranges, octave_grid, unread
from depthmup_flax.util.errors import InputError

log = logging.getLogger(__name__)

SHRINK = (1.0, 0.5, 0.25)  # sizes of the boxes, in parts of the ranges
_OF_X = 0.5  # times that for the hyperparameter of the first round, whose best value is known to an octave
TRIALS = 48  # 16 in each
EXTEND = 4  # values that may be added at each end of a grid
FINALISTS = 8  # points that are trained with all seeds
_EDGE = 0.05  # share of a range, on a log scale, at each end

Point = tuple[float, ...]  # a value for each tuned field


@dataclasses.dataclass(frozen=True)
class Search:
    """What a search trains: a sweep over the values of a first round, and then what `more` adds.

    Attributes:
      ranges: of the tuned fields; the learning rate, or else the first of them, is varied in the first round.
      seeds: of the runs.
    """

    ranges: Ranges
    seeds: Sequence[int]

    @property
    def x(self) -> str:
        """The field of the first round."""
        return LEARNING_RATE if LEARNING_RATE in self.ranges else next(iter(self.ranges))

    @property
    def extend(self) -> int:
        """How often `more` is called."""
        return EXTEND

    def grid(self, proxy: ConfigDict) -> dict[str, tuple[Any, ...]]:
        """The first round: field -> values; ``proxy``: the config of its runs."""
        return {self.x: octave_grid(*self.ranges[self.x]), SEED: tuple(self.seeds)}

    def more(self, config: ConfigDict, runs: Sequence[Run], done: Mapping[str, Record]) -> list[tuple[list[Run], str]]:
        """Values beyond a grid whose best one is at its edge; see `depthmup_flax.sweep.runner.sweep`."""
        return extension(config, runs, done)

    def choice(self, config: ConfigDict, records: Sequence[Record], advice: Advice = COMMAND) -> Choice:
        """The best values; ``config``: of the sweep."""
        return best(records, self.x, advice, config.objective)


@dataclasses.dataclass(frozen=True)
class Rounds(Search):
    """A search over several hyperparameters: random points in boxes that shrink around the best one.

    The first round varies one of them, an octave at a time. Each of `SHRINK` is a round of points in a box around the
    best so far. All of these have the first seed; the last round trains the best points with the other seeds.

    Attributes:
      trials: number of points after the first round.
    """

    trials: int = TRIALS

    @property
    def extend(self) -> int:
        """See `Search`."""
        return len(SHRINK) + 1

    def grid(self, proxy: ConfigDict) -> dict[str, tuple[Any, ...]]:
        """See `Search`; the other fields have the config's value, or the nearest one in their range."""
        present = {path: get_field(proxy, path) for path in self.ranges}
        others = {path: (min(max(present[path] or 1.0, low), high),) for path, (low, high) in self.ranges.items()}
        return {**others, self.x: octave_grid(*self.ranges[self.x]), SEED: (self.seeds[0],)}

    def more(self, config: ConfigDict, runs: Sequence[Run], done: Mapping[str, Record]) -> list[tuple[list[Run], str]]:
        """See `Search`: the round after ``runs``."""
        losses = self._losses((done[run.hash] for run in runs), self.seeds[0], config.objective)
        ranked = sorted(losses, key=losses.__getitem__)
        if not math.isfinite(losses[top := ranked[0]]):
            raise InputError(ALL_DIVERGED)
        grid, each = self.grid(config.base), math.ceil(self.trials / len(SHRINK))
        k, seeds = (len(losses) - len(grid[self.x])) // each, self.seeds[:1]
        if k < len(SHRINK):
            points = self._box(top, SHRINK[k], min(each, self.trials - k * each), np.random.default_rng([seeds[0], k]))
        else:
            of_grid = next(point for point in ranked if self._is_first(point, grid))
            points, seeds = list(dict.fromkeys([of_grid, *ranked[:FINALISTS]]))[:FINALISTS], self.seeds[1:]
        axes = list(runs[0].point)
        values = [{**self._named(point), SEED: seed} for seed in seeds for point in points]
        shown = ", ".join(f"{axis_name(path)} {number(value)}" for path, value in self._named(top).items())
        sentence = f"lowest {LOSSES[config.objective]} so far {losses[top]:.4g}, at {shown}; {len(values)} more runs"
        return [([make_run(config.base, axes, of_run) for of_run in values], sentence)]

    def choice(self, config: ConfigDict, records: Sequence[Record], advice: Advice = COMMAND) -> Choice:
        """See `Search`: the best of the points that were trained with all seeds."""
        by_seed = [self._losses(records, seed, config.objective) for seed in self.seeds]
        of_point = {point: [losses[point] for losses in by_seed] for point in by_seed[-1]}
        ranked = sorted(of_point, key=lambda point: math.fsum(of_point[point]))
        top, grid = ranked[0], self.grid(config.base)
        if not math.isfinite(math.fsum(of_point[top])):
            raise InputError(ALL_DIVERGED)
        of_grid = next(point for point in ranked if self._is_first(point, grid))
        loss = LOSSES[config.objective].capitalize()
        compared = (
            f"{loss} {_mean_and_deviation(of_point[top])}; with the {axis_name(self.x)} alone tuned, at "
            f"{number(self._named(of_grid)[self.x])}, {_mean_and_deviation(of_point[of_grid])}."
        )
        warnings = [
            f"the best {path}, {value:.4g}, is near the end of its range, {low:.4g} to {high:.4g}. "
            + advice.beyond.format(path=path, value=value)
            for (path, (low, high)), value in zip(self.ranges.items(), top, strict=True)
            if not _EDGE < math.log(value / low) / math.log(high / low) < 1 - _EDGE
        ]
        values = {self.x: self._named(top)[self.x], **self._named(top)}
        return Choice(values, None, {}, len(self.seeds), tuple(warnings), self.x, config.objective, compared)

    def _losses(self, records: Iterable[Record], seed: int, objective: str) -> dict[Point, float]:
        """Point -> loss of the run with a seed, infinite if it diverged; in the order of the records."""
        losses = {tuple(r.point[path] for path in self.ranges): r.loss(objective) for r in records if r.seed == seed}
        return {point: math.inf if loss is None else loss for point, loss in losses.items()}

    def _box(self, center: Point, size: float, count: int, draw: np.random.Generator) -> list[Point]:
        """A Latin hypercube in the logarithms of values, in the box around ``center`` that lies in the ranges."""
        places = (
            draw.permuted(np.tile(np.arange(count), (len(center), 1)), axis=1).T + draw.random((count, len(center)))
        ) / count
        columns = []
        for place, middle, (path, ends) in zip(places.T, np.log(center), self.ranges.items(), strict=True):
            low, high = np.log(ends)
            half = size * (high - low) / 2 * (_OF_X if path == self.x else 1)
            columns.append(np.exp(np.interp(place, (0, 1), (max(low, middle - half), min(high, middle + half)))))
        return [tuple(map(_four_digits, point)) for point in np.transpose(columns)]

    def _is_first(self, point: Point, grid: Mapping[str, tuple[Any, ...]]) -> bool:
        """Whether a point is one of the first round."""
        return all(value in grid[path] for path, value in self._named(point).items())

    def _named(self, point: Point) -> dict[str, float]:
        return dict(zip(self.ranges, point, strict=True))


def _four_digits(value: float) -> float:
    """As ``tuned.py`` has it, so that it was trained."""
    return float(f"{value:.4g}")


def _mean_and_deviation(losses: Sequence[float]) -> str:
    mean = statistics.fmean(losses)
    return f"{mean:.4g}" + (f" ± {statistics.stdev(losses):.2g}" if len(losses) > 1 and math.isfinite(mean) else "")


def search_of(ranges: Ranges, seeds: Sequence[int], trials: int = TRIALS) -> Search:
    """A grid for one hyperparameter, `Rounds` for several; `InputError` for too few ``trials``."""
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < len(SHRINK):
        raise InputError(f"--trials is {trials!r}: use a whole number of at least {len(SHRINK)}.")
    return Rounds(ranges, seeds, trials) if len(ranges) > 1 else Search(ranges, seeds)


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
    sentence = f"--tune has {names}, on which the training of {experiment.config.model.name} does not depend"
    if not ranges:
        raise InputError(f"{sentence}: name another hyperparameter, such as learning_rate.")
    log.warning("%s: left out", sentence)
    return search_of(ranges, search.seeds, search.trials if isinstance(search, Rounds) else TRIALS)
