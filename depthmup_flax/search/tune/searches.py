"""The searches of a tuner: a grid, or rounds of random points over several hyperparameters; and their ranges."""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from ml_collections import ConfigDict

from depthmup_flax.config.fields import get_field
from depthmup_flax.config.hyperparameters import RULE
from depthmup_flax.report.curves import LOSSES, axis_name, number
from depthmup_flax.report.optimum import Estimate, resampled_means
from depthmup_flax.search.sweep.grid import Run, as_tuple, extension, make_run
from depthmup_flax.search.tune.choice import Choice, best_choice, search_beyond
from depthmup_flax.storage.sweep_records import CONTINUOUS, LEARNING_RATE, ROUNDS, SEED, Record
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.util.errors import InputError, did_you_mean, require_number

log = logging.getLogger(__name__)

SHRINK = (1.0, 0.5, 0.25)  # sizes of the boxes, in parts of the ranges
_OF_X = 0.5  # times that for the hyperparameter of the first round, whose best value is known to an octave
TRIALS = 48  # 16 in each
EXTEND = 4  # values that may be added at each end of a grid
CONFIRM = 8  # seeds of the last round
_EDGE = 0.05  # share of a range, on a log scale, at each end

Point = tuple[float, ...]  # a value for each tuned field
Range = tuple[float, float]  # lowest and highest value, both above 0
Ranges = Mapping[str, Range]  # dotted field -> its range

# Tuned with the learning rate by default: `benchmarks.what_to_tune` measures the gain at equal compute.
_DEFAULT = ("branch_multiplier", "input_lr_factor", "output_lr_factor")
_MOST_OCTAVES = 20


def default_names(config: ConfigDict) -> list[str]:
    """What is tuned besides the learning rate where nothing is named; a factor that is 0 stays so."""
    return [name for name in _DEFAULT if present_value(config, f"{RULE}.{name}") > 0]


def tuned_ranges(config: ConfigDict, named: Iterable[tuple[str, Any]], octaves: int) -> dict[str, Range]:
    """Dotted field -> its range; the learning rate is always among them.

    ``named`` are fields, or their last parts, each with its lowest and highest value or ``None``: some octaves on each
    side of the config's value; ``octaves`` are those of the learning rate.
    """
    if not 1 <= octaves <= _MOST_OCTAVES:
        raise InputError(f"octaves is {octaves}: use a whole number from 1 to {_MOST_OCTAVES}.")
    of_rule = [path for path in CONTINUOUS if path.startswith(RULE)]
    paths = (LEARNING_RATE, "optimizer.weight_decay", *of_rule, *(f"hyper.{name}" for name in config.hyper))
    known = {path.rpartition(".")[2]: path for path in paths}
    given: dict[str, Any] = {}
    for name, ends in named:
        path = name if name in paths else known.get(name)
        if path is None:
            raise InputError(f"tune has {name!r}: {did_you_mean(name, known)}")
        if path in given:
            raise InputError(f"tune has {name!r} twice: give each name once.")
        given[path] = ends
    return {path: _range(config, path, ends, octaves) for path, ends in {LEARNING_RATE: None, **given}.items()}


def _range(config: ConfigDict, path: str, ends: Any, octaves: int) -> Range:
    wrong = f"{path.rpartition('.')[2]} is"
    example = "a range, such as 0.25:4, in Python (0.25, 4)"
    if ends is None:
        present = present_value(config, path)
        if not 0 < present < math.inf:
            raise InputError(f"{wrong} {present}, from which no search can start. Give {example}.")
        wide = octaves if path == LEARNING_RATE else 3.0 if path.endswith("_lr_factor") else 2.0
        return present * 2.0**-wide, present * 2.0**wide
    try:
        low, high = map(float, ends)
    except (TypeError, ValueError):
        low = high = math.nan
    if not 0 < low < high < low * 2.0 ** (2 * _MOST_OCTAVES):
        shown = ":".join(map(str, ends)) if isinstance(ends, (list, tuple)) else repr(ends)
        raise InputError(f"{wrong} {shown}: use two numbers above 0 within {2 * _MOST_OCTAVES} octaves, {example}.")
    return low, high


def present_value(config: ConfigDict, path: str) -> float:
    """The value of a field that may be tuned; a rule's constant is 1 if it is not set."""
    value = get_field(config, path)
    return 1.0 if value is None else value


def octave_grid(low: float, high: float) -> tuple[float, ...]:
    """Values from ``low`` to ``high``, whose ratio is about 2."""
    count = max(1, round(math.log2(high / low)))
    return tuple(low * (high / low) ** (k / count) for k in range(count + 1))


def unread(experiment: Experiment, paths: Collection[str]) -> list[str]:
    """The fields among ``paths`` on which initial values and a step do not depend; traces, and computes nothing."""
    arguments = experiment.step_shapes()
    values = dict.fromkeys(paths, jax.ShapeDtypeStruct((), jnp.float32))
    train = lambda values, state, batch: (experiment.init(values).carry, experiment.step(values)(state, batch)[0].carry)
    jaxpr = jax.make_jaxpr(train)(values, *arguments)
    _, used = partial_eval.dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.out_avals))
    read = {path for path, is_used in zip(sorted(values), used, strict=False) if is_used}  # leaves are sorted
    return [path for path in paths if path not in read]


@final
@dataclasses.dataclass(frozen=True)
class Search:
    """What a search trains: a grid, and then what `more` adds.

    With ``trials``, several hyperparameters are tuned in rounds of random points, in boxes that shrink around good
    ones. The grid of ``x``, with all seeds, comes first, and is extended. Each of `SHRINK` is a round of points in a
    box, all with one seed. The first box is around the best of the grid, the next ones are around the mean, in
    logarithms, of the best quarter of a round (the cross-entropy method: Rubinstein, Methodol. Comput. Appl. Probab. 1,
    1999), which is less subject to chance than the best point. The last round trains this mean and the best of the grid
    with `CONFIRM` seeds that the search has not seen. The mean is the choice if its gain is resolved: if the 95 %
    interval is above 0.
    """

    axes: Mapping[str, tuple[Any, ...]]  # dotted field -> values of the grid
    seeds: tuple[int, ...]  # of the runs
    extend: int = EXTEND  # the most values that are added at the ends of the grid
    ranges: Ranges = dataclasses.field(default_factory=dict)  # of the fields that are tuned over a range
    trials: int = 0  # number of points in all boxes, as many in each; 0: the grid alone

    @property
    def figure(self) -> str:
        """The name of its sweep."""
        return ROUNDS if self.trials else "tune"

    @property
    def x(self) -> str:
        """The field that is interpolated: the learning rate, or the first one with several positive values."""
        is_number = lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        several = [path for path, values in self.axes.items() if len(values) > 1 and all(map(is_number, values))]
        return LEARNING_RATE if LEARNING_RATE in several or not several else several[0]

    @property
    def rounds(self) -> int:
        """How often `more` is called."""
        return self.extend + (len(SHRINK) + 1 if self.trials else 0)

    def grid(self) -> dict[str, tuple[Any, ...]]:
        """The first runs: dotted field -> values."""
        return {**self.axes, SEED: self.seeds}

    def more(self, config: ConfigDict, runs: Sequence[Run], done: Mapping[str, Record]) -> list[tuple[list[Run], str]]:
        """Values beyond a grid whose best one is at its edge, as in `depthmup_flax.sweep`; or the next round."""
        return _next_round(self, config, runs, done) if self.trials else extension(config, runs, done)

    def choice(self, config: ConfigDict, records: Sequence[Record]) -> Choice:
        """The best values; ``config``: of the sweep."""
        if self.trials:
            return _choice_of_rounds(self, config, records)
        return best_choice(records, self.x, config.objective)

    def without_unread(self, experiment: Experiment) -> Search:
        """The search over the fields on which training depends; says which others are left out."""
        left_out = unread(experiment, self.ranges) if self.ranges else []
        if not left_out:
            return self
        names = ", ".join(path.rpartition(".")[2] for path in left_out)
        sentence = f"the training of {experiment.config.model.name} does not depend on {names}"
        if len(left_out) == len(self.ranges):
            raise InputError(f"tune: {sentence}. Name another hyperparameter, such as learning_rate.")
        log.info("%s: not tuned", sentence)
        paths = [path for path in self.ranges if path not in left_out]
        axes, ranges = ({path: of_all[path] for path in paths} for of_all in (self.axes, self.ranges))
        if len(paths) == 1:
            ((path, ends),) = ranges.items()
            return Search({path: octave_grid(*ends)}, self.seeds, self.extend, ranges)
        if LEARNING_RATE not in paths:
            axes[paths[0]] = octave_grid(*ranges[paths[0]])
        return dataclasses.replace(self, axes=axes, ranges=ranges)


def _next_round(
    search: Search, config: ConfigDict, runs: Sequence[Run], done: Mapping[str, Record]
) -> list[tuple[list[Run], str]]:
    """The round after ``runs``."""
    records, each = [done[run.hash] for run in runs], search.trials // len(SHRINK)
    size, ranges = len(_on_grid(search, records)), _extended(search, records)
    k = (len(records) - size) // each  # boxes of `SHRINK` that are trained; the last round follows all of them
    most = (len(search.axes[search.x]) + search.extend) * len(search.seeds)
    if len(records) == size < most and (wider := extension(config, runs, done)):
        return wider
    of_grid = center = _best_of_grid(search, config, records)
    if k:
        center = _center(search, records[size + (k - 1) * each : size + k * each], config.objective) or of_grid
    if k < len(SHRINK):
        draw = np.random.default_rng([search.seeds[0], k])
        points = _box(search, center, ranges, SHRINK[k], each, draw)
        seeds: Sequence[int] = (search.seeds[k % len(search.seeds)],)
    else:
        points, seeds = [of_grid, center], _fresh(search)
    axes = list(runs[0].point)
    values = [{**_named(search, point), SEED: seed} for seed in seeds for point in points]
    shown = ", ".join(f"{axis_name(path)} {number(value)}" for path, value in _named(search, center).items())
    return [([make_run(config.base, axes, of_run) for of_run in values], f"{len(values)} runs around {shown}")]


def _choice_of_rounds(search: Search, config: ConfigDict, records: Sequence[Record]) -> Choice:
    """The last mean, or the best of the grid."""
    fresh = sorted((r for r in records if r.seed in _fresh(search)), key=lambda record: record.seed)
    losses: dict[Point, list[float]] = {_best_of_grid(search, config, records): []}
    for record in fresh:
        losses.setdefault(_point(search, record), []).append(_loss(record, config.objective))
    of_grid, center = next(iter(losses)), list(losses)[-1]
    gain, low, high = _gain(losses[of_grid], losses[center])
    better = low > 0
    values = _named(search, center if better else of_grid)
    warnings = [
        f"the best {path}, {value:.4g}, is near the end of its range, {ends[0]:.4g} to {ends[1]:.4g}. "
        + search_beyond(path, value)
        for (path, ends), value in zip(_extended(search, records).items(), values.values(), strict=True)
        if not _EDGE < math.log(value / ends[0]) / math.log(ends[1] / ends[0]) < 1 - _EDGE
    ]
    name, loss = axis_name(search.x), LOSSES[config.objective].capitalize()
    compared = (
        f"{loss} with fresh seeds, mean ± standard deviation: {_mean_and_deviation(losses[center])}; with the "
        f"{name} alone tuned: "
        f"{_mean_and_deviation(losses[of_grid])}. Gain {gain:.2g} (95 %: {low:.2g} to {high:.2g})."
    )
    if not better:
        compared += f" As it is not above 0, only the tuned {name} is taken."
    ordered = {search.x: values[search.x], **values}
    return Choice(ordered, None, {}, len(_fresh(search)), tuple(warnings), search.x, config.objective, compared)


def _fresh(search: Search) -> range:
    first = max(search.seeds) + 1
    return range(first, first + CONFIRM)


def _on_grid(search: Search, records: Sequence[Record]) -> list[Record]:
    others = {path: values for path, values in search.grid().items() if path != search.x}
    return [record for record in records if all(record.point[path] in others[path] for path in others)]


def _extended(search: Search, records: Sequence[Record]) -> Ranges:
    """The ranges, with the values by which the grid was extended."""
    of_grid = [record.point[search.x] for record in _on_grid(search, records)]
    return {**search.ranges, search.x: (min(of_grid), max(of_grid))}


def _best_of_grid(search: Search, config: ConfigDict, records: Sequence[Record]) -> Point:
    values = best_choice(_on_grid(search, records), search.x, config.objective).values
    return tuple(_four_digits(values[path]) for path in search.ranges)


def _center(search: Search, records: Sequence[Record], objective: str) -> Point | None:
    """The mean, in logarithms, of the best quarter of a round; ``None`` if all of them diverged."""
    ranked = sorted(records, key=lambda record: _loss(record, objective))[: max(1, len(records) // 4)]
    points = [_point(search, record) for record in ranked if math.isfinite(_loss(record, objective))]
    return tuple(map(_four_digits, np.exp(np.log(points).mean(0)))) if points else None


def _box(
    search: Search, center: Point, ranges: Ranges, size: float, count: int, draw: np.random.Generator
) -> list[Point]:
    """A Latin hypercube in the logarithms of values, in the box around ``center`` that lies in the ranges."""
    axes = len(center)
    places = (draw.permuted(np.tile(np.arange(count), (axes, 1)), axis=1) + draw.random((axes, count))) / count
    columns = []
    for place, middle, (path, ends) in zip(places, np.log(center), ranges.items(), strict=True):
        low, high = np.log(ends)
        half = size * (high - low) / 2 * (_OF_X if path == search.x else 1)
        columns.append(np.exp(np.interp(place, (0, 1), (max(low, middle - half), min(high, middle + half)))))
    return [tuple(map(_four_digits, point)) for point in np.transpose(columns)]


def _point(search: Search, record: Record) -> Point:
    return tuple(record.point[path] for path in search.ranges)


def _named(search: Search, point: Point) -> dict[str, float]:
    return dict(zip(search.ranges, point, strict=True))


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


def search_of(
    config: ConfigDict,
    named: Iterable[tuple[str, Any]],
    *,
    seeds: int | Sequence[int] = 3,
    octaves: int = 4,
    trials: int = TRIALS,
    extend: int = EXTEND,
) -> Search:
    """A search over ranges around the values of ``config``: a grid of learning rates, or rounds with further names.

    Args:
      config: of the proxy.
      named, octaves: see `tuned_ranges`.
      seeds: their number, or the seeds.
      trials: points of all rounds.
      extend: values that may be added at each end of the grid.
    """
    require_number("trials", trials, least=len(SHRINK), whole=True)
    require_number("extend", extend, least=0, whole=True)
    ranges, seeds = tuned_ranges(config, named, octaves), seed_values(seeds, config.seed)
    if len(ranges) == 1:
        return Search({LEARNING_RATE: octave_grid(*ranges[LEARNING_RATE])}, seeds, extend, ranges)
    # Others than the rate have the config's value, or the nearest one in their range.
    value = lambda path, low, high: min(max(present_value(config, path), low), high)
    axes: dict[str, Point] = {path: (value(path, *ends),) for path, ends in ranges.items()}
    axes[LEARNING_RATE] = octave_grid(*ranges[LEARNING_RATE])
    return Search(axes, seeds, extend, ranges, trials)


def seed_values(seeds: int | Sequence[int], first: int) -> tuple[int, ...]:
    """The seeds: those given, or so many from ``first`` on."""
    several = isinstance(seeds, Iterable) and not isinstance(seeds, (str, Mapping))
    values = as_tuple(seeds)
    if not all(isinstance(value, int) for value in values) or (not several and values[0] < 1):
        raise InputError(f"seeds is {seeds!r}: use a whole number of at least 1, or several seeds, such as (0, 1, 2).")
    return values if several else tuple(range(first, first + values[0]))
