"""The grids and searches of a Study as sweeps, each set of axes in a directory of its own."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ml_collections import ConfigDict

from depthmup_flax.config.fields import get_field
from depthmup_flax.data import LoadOnce
from depthmup_flax.search.study.names import field_of
from depthmup_flax.search.study.results import ADVICE, Best, Swept
from depthmup_flax.search.sweep.grid import as_tuple, extension, powers_of_two, sweep_config
from depthmup_flax.search.sweep.runner import More, OnRecord, sweep
from depthmup_flax.search.tune.choice import Choice, best
from depthmup_flax.search.tune.optuna_search import Point, search
from depthmup_flax.search.tune.ranges import tuned_ranges
from depthmup_flax.search.tune.rounds import search_of, without_unread
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.records import LEARNING_RATE, ROUNDS, SEED, TRAIN, Record, flat, short_names
from depthmup_flax.trainer.engine.from_config import build
from depthmup_flax.util.errors import InputError

if TYPE_CHECKING:
    import optuna

Axes: TypeAlias = dict[str, tuple[Any, ...]]  # dotted field -> values
_OCTAVES = 4  # on each side of the config's learning rate, where no values are given
_SWEEP, _TUNE, _SEARCH = "sweep", "tune", "search"
_TITLES = {_TUNE: "Tuning of a proxy", **dict.fromkeys((_SEARCH, ROUNDS), "Search on a proxy")}


def _title(kind: str, grids: Mapping[str, Axes]) -> str:
    varied = [name for name in ("width", "depth") if any(f"model.{name}" in axes for axes in grids.values())]
    return _TITLES.get(kind) or (f"Transfer over {' and '.join(varied)}" if varied else "A grid at the base")


@dataclasses.dataclass(frozen=True)
class Grids:
    """Trains grids of a base config.

    Attributes:
      config: of the proxy.
      workdir: has a directory for each set of axes; more values of the same axes add to it.
      load: the data.
      seeds: their number, or the seeds.
      lanes, overwrite, on_record, shard: see `depthmup_flax.search.sweep.runner.sweep`.
      objective: the loss by which runs are compared.
    """

    config: ConfigDict
    workdir: pathlib.Path
    load: LoadOnce
    seeds: int | Sequence[int]
    lanes: int | None = None
    overwrite: bool = False
    on_record: OnRecord | None = None
    objective: str = TRAIN
    shard: tuple[int, int] = (0, 1)

    def axes(self, values: Mapping[str, Any]) -> Axes:
        """The axes that names and values mean; `InputError` for a wrong name, a size or the seed."""
        axes: Axes = {}
        for name, given in values.items():
            path = field_of(self.config, name)
            wrong = f"{name} is {given!r}"
            if path == SEED:
                raise InputError(f"{wrong}: give the number of seeds, or several, as seeds=3.")
            if path in ("model.width", "model.depth"):
                raise InputError(f"{wrong}: sizes are given to study.sweep, as widths=(64, 256) or depths=(4, 16).")
            if path in axes:
                raise InputError(f"{wrong}: {path} is given twice. Leave one out.")
            axes[path] = as_tuple(given)
        rate = self.config.optimizer.learning_rate
        return axes or {LEARNING_RATE: tuple(rate * factor for factor in powers_of_two(-_OCTAVES, _OCTAVES))}

    def train(
        self,
        kind: str,
        grids: Mapping[str, Axes],
        x: str,
        extend: int,
        *,
        overwrite: bool | None = None,
        more: More = extension,
    ) -> tuple[ConfigDict, list[Record], Swept]:
        """The sweep of grids over the same fields along ``x``, and its records."""
        with_seeds = {name: {**axes, SEED: self.seed_values()} for name, axes in grids.items()}
        extend = 0 if isinstance(get_field(self.config, x), int) else extend  # whole numbers are not extended
        grid = sweep_config(
            self.config,
            with_seeds,
            figure=kind,
            title=_title(kind, grids),
            scale="study",
            x=x,
            extend=extend,
            objective=self.objective,
        )
        records = sweep(
            grid,
            directory := self._directory(kind, {path for axes in grids.values() for path in axes}),
            lanes=self.lanes,
            overwrite=self.overwrite if overwrite is None else overwrite,
            load=self.load,
            kind=workdirs.SWEEP if kind == _SWEEP else workdirs.TUNE,
            on_record=self.on_record,
            shard=self.shard,
            more=more,
        )
        names = short_names(records[0].point) if records else {}
        return grid, records, Swept([flat(record, names) for record in records], directory, self.objective)

    def seed_values(self) -> tuple[int, ...]:
        """The seeds."""
        seeds, first = self.seeds, self.config.seed
        several = isinstance(seeds, Iterable) and not isinstance(seeds, (str, Mapping))
        values = as_tuple(seeds)
        if not all(isinstance(value, int) for value in values) or (not several and values[0] < 1):
            raise InputError(
                f"seeds is {seeds!r}: use a whole number of at least 1, or several seeds, such as (0, 1, 2)."
            )
        return values if several else tuple(range(first, first + values[0]))

    def _directory(self, kind: str, paths: set[str]) -> pathlib.Path:
        return self.workdir / "_".join([kind, *sorted(path.rpartition(".")[2] for path in paths)])


def swept(grids: Grids, axes: Axes, sizes: Mapping[str, tuple[int, ...]], extend: int) -> Swept:
    """A grid at the base, and at each of ``sizes``: width or depth -> values, with the base's other size."""
    axes, x = _with_x(grids, axes)
    lines = {
        name: {f"model.{name}": tuple(sorted({grids.config.model[name], *values})), **axes}
        for name, values in sizes.items()
        if values
    }
    return grids.train(_SWEEP, lines or {"base": axes}, x, extend)[-1]


def tuned(grids: Grids, axes: Axes, extend: int) -> Best:
    """The best of a grid on the proxy."""
    axes, x = _with_x(grids, axes)
    _, records, runs = grids.train(_TUNE, {"proxy": axes}, x, extend)
    return Best(best(records, x, ADVICE, grids.objective), grids.config, runs)


def tuned_in_rounds(grids: Grids, names: Sequence[str], ranges: Mapping[str, Any], trials: int, extend: int) -> Best:
    """The best of a search over several hyperparameters, see `depthmup_flax.search.tune.rounds.Rounds`.

    Args:
      grids: the proxy.
      names: of the hyperparameters.
      ranges: name -> lowest and highest value; of others of them ``tuned_ranges`` chooses the range.
      trials: number of points.
      extend: values that may be added to the grid of learning rates.
    """
    config, others = grids.config, [name for name in ranges if name not in names]
    named = [(field_of(config, name), ranges.get(name)) for name in (*names, *others)]
    search = search_of(tuned_ranges(config, named, _OCTAVES), grids.seed_values(), trials, extend)
    search = without_unread(search, build(config, load=grids.load))
    axes = {path: values for path, values in search.grid(config).items() if path != SEED}
    grid, records, runs = grids.train(ROUNDS, {"proxy": axes}, search.x, search.extend, more=search.more)
    return Best(search.choice(grid, records, ADVICE), config, runs)


def _with_x(grids: Grids, axes: Axes) -> tuple[Axes, str]:
    """The axes with that of the learning rate, and the one along which optima are interpolated.

    That is the learning rate, if it has several values, or else the first axis with several positive numbers.
    """
    axes = {LEARNING_RATE: (grids.config.optimizer.learning_rate,), **axes}
    is_number = lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    several = [path for path, values in axes.items() if len(values) > 1 and all(map(is_number, values))]
    return axes, several[0] if several else LEARNING_RATE


def searched(grids: Grids, axes: Axes, sampler: optuna.samplers.BaseSampler | None, trials: int, at_once: int) -> Best:
    """The best point that a sampler finds on the proxy in ranges; an axis with one value has that value."""
    fixed = {path: values for path, values in axes.items() if len(values) == 1}
    ranges: dict[str, Any] = {path: values for path, values in axes.items() if path not in fixed}
    if not ranges:
        raise InputError("a sampler needs a range, and none is given: name one, such as learning_rate=(1e-4, 1e-1).")
    x = LEARNING_RATE if LEARNING_RATE in ranges else next(iter(ranges))
    batches: list[tuple[ConfigDict, list[Record], Swept]] = []

    def losses_of(points: Sequence[Point]) -> list[float]:
        trial = {f"trial_{k}": {**fixed, **{p: (v,) for p, v in at.items()}} for k, at in enumerate(points)}
        overwrite = grids.overwrite and not batches  # what was there before this search
        batches.append(grids.train(_SEARCH, trial, x, 0, overwrite=overwrite))
        return [_mean_loss(batches[-1][1], at, grids.objective) for at in points]

    config = grids.config
    whole = {path for path in ranges if isinstance(get_field(config, path), int)}
    point = search(ranges, losses_of, sampler=sampler, trials=trials, at_once=at_once, seed=config.seed, whole=whole)
    values = {**{path: only for path, (only,) in fixed.items()}, **point}
    of_run = {record["run"]: record for *_, runs in batches for record in runs.records}
    runs = Swept(list(of_run.values()), batches[-1][-1].directory, grids.objective)
    seeds = {record["seed"] for record in runs.records}
    return Best(Choice(values, None, {}, len(seeds), (), x, grids.objective), config, runs)


def _mean_loss(records: Sequence[Record], at: Point, objective: str) -> float:
    """Over the seeds of a point; infinite if one diverged."""
    own = [record for record in records if all(record.point[path] == value for path, value in at.items())]
    losses = [record.loss(objective) for record in own]
    return math.inf if None in losses else math.fsum(loss for loss in losses if loss is not None) / len(losses)
