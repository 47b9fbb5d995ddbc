"""The runs of a sweep: named grids over the fields of a base config.

A sweep's config file has ``get_config(scale)``, which returns a `sweep_config`. A grid is the product of its axes, the
sweep the union of its grids; each run is trained once.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from depthmup_flax.config import fields as configs
from depthmup_flax.config.hyperparameters import RULE, hyperparameters
from depthmup_flax.rule.optimizer import AVERAGES
from depthmup_flax.storage.run_hash import execution_fields
from depthmup_flax.storage.sweep_records import (
    LEARNING_RATE,
    OBJECTIVES,
    SEED,
    TEST,
    TRAIN,
    VALIDATION,
    Record,
    SweepInfo,
)
from depthmup_flax.trainer.engine.lanes import LaneRun
from depthmup_flax.util.errors import InputError, did_you_mean, require_number

SCALES = ("smoke", "cpu", "long", "gpu10", "gpu", "paper")
_PRESET, _ALPHA = f"{RULE}.preset", f"{RULE}.alpha"


@dataclasses.dataclass(frozen=True)
class Run(LaneRun):
    """One run of a sweep."""

    point: dict[str, Any]  # dotted field -> value for every axis of the sweep
    config: ConfigDict  # the whole config; train.py trains the same with it


def sweep_config(
    base: ConfigDict,
    grids: Mapping[str, Mapping[str, Sequence[Any]]],
    *,
    figure: str,
    title: str,
    scale: str,
    x: str = LEARNING_RATE,
    extend: int = 0,
    objective: str = TRAIN,
) -> ConfigDict:
    """The config of a sweep.

    Args:
      base: config of a run, from `depthmup_flax.config.fields.default_config` or a config file.
      grids: name -> dotted field -> values. On the command line: ``--config.grids.depths.model.depth="(4, 8)"``.
      figure: id of the figure.
      title: one sentence.
      scale: size of the experiment, the argument of ``get_config``: one of `SCALES`.
      x: the axis along which the report finds optima.
      extend: largest number of values to add to ``x`` while the minimum of a curve lies at the edge of the grid.
      objective: the loss by which runs are compared: ``train``; ``validation``, which needs
        ``base.data.validation_fraction``; or ``test``.
    """
    tuples = {name: {path: as_tuple(values) for path, values in grid.items()} for name, grid in grids.items()}
    nested = {name: unflatten_dict(grid, sep=".") for name, grid in tuples.items()}
    fields = {"figure": figure, "title": title, "scale": scale, "x": x, "extend": extend, "objective": objective}
    return configs.Config({**fields, "grids": nested, "base": base})


def at_scale(scale: str, **choices: Any) -> Any:
    """The choice for ``scale``, or ``other``; `InputError` if there is neither."""
    known = SCALES if "other" in choices else tuple(choices)
    if scale not in known:
        raise InputError(f"config.scale is {scale!r}: use one of {', '.join(known)}.")
    return choices.get(scale, choices.get("other"))


def powers_of_two(low: float, high: float, step: float = 1.0) -> tuple[float, ...]:
    """``2^low, 2^(low + step), ..., 2^high``; `InputError` unless whole steps lead from ``low`` to ``high``."""
    steps = (high - low) / step if step else math.nan
    if not (steps >= 0 and math.isclose(steps, round(steps), abs_tol=1e-6)):
        raise InputError(f"powers_of_two({low:g}, {high:g}, {step:g}) has no values: use exponents, the lowest first.")
    return tuple(2.0 ** (low + i * step) for i in range(round(steps) + 1))


def sweep_info(config: ConfigDict) -> SweepInfo:
    """The content of ``sweep.json`` for a sweep's config."""
    grids = _grids(config).values()
    axes: dict[str, list[Any]] = {path: [] for grid in grids for path in grid}
    for path, axis in axes.items():
        # A grid without this axis has the base's value.
        for grid in sorted(grids, key=lambda grid: path not in grid):
            values = grid.get(path, (configs.get_field(config.base, path),))
            axis += [value for value in values if value not in axis]
        if all(isinstance(value, (int, float)) for value in axis):
            axis.sort()
    base = json.loads(configs.to_json(config.base))
    return SweepInfo(config.figure, config.title, config.scale, config.x, axes, base, config.objective)


def expand(config: ConfigDict) -> list[Run]:
    """All runs, each once, in the order of the grids; `InputError` for an invalid axis, value or run."""
    _validate(config)
    axes = list(sweep_info(config).axes)
    products = [(grid, values) for grid in _grids(config).values() for values in itertools.product(*grid.values())]
    runs = [make_run(config.base, axes, dict(zip(grid, values, strict=True))) for grid, values in products]
    return list({run.hash: run for run in runs}.values())


def make_run(base: ConfigDict, axes: Sequence[str], values: Mapping[str, Any]) -> Run:
    """The run of the base config with some fields changed; checked by `depthmup_flax.config.fields.validate`."""
    config = base.copy_and_resolve_references()
    for path, value in values.items():
        configs.set_field(config, path, value)
    configs.validate(config)
    point = {path: configs.get_field(config, path) for path in axes}
    return Run(configs.config_hash(config), hyperparameters(config), point, config)


def structural_groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups of runs that differ only in hyperparameters, sorted so that runs that diverge early are neighbors."""
    return [sorted(group, key=_order) for group in _grouped(runs, structure)]


def curves(runs: Sequence[Run], x: str) -> list[list[Run]]:
    """Groups of runs that differ only in ``x`` and the seed."""
    others = lambda run: {path: value for path, value in run.point.items() if path not in (x, SEED)}
    return _grouped(runs, lambda run: json.dumps(others(run), sort_keys=True))


def _grouped(runs: Sequence[Run], key: Callable[[Run], str]) -> list[list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def shard_of(runs: Sequence[Run], x: str, shard: tuple[int, int], cost: Mapping[str, float]) -> list[Run]:
    """Shard ``(i, n)`` of runs: whole curves along ``x``, similar ones together, of about equal ``cost`` (by hash)."""
    index, count = shard
    total = sum(cost[run.hash] for run in runs)
    selected: list[Run] = []
    before = 0.0
    for curve in (curve for group in structural_groups(runs) for curve in curves(group, x)):
        size = sum(cost[run.hash] for run in curve)
        # A curve belongs to the shard in which its middle lies.
        if min(count - 1, int((before + size / 2) / total * count)) == index:
            selected += curve
        before += size
    return selected


def _validate(config: ConfigDict) -> None:
    configs.require_command(config, "sweep")
    if config.base.mesh.to_dict() != configs.default_config().mesh.to_dict():
        raise InputError(f"config.base.mesh is {config.base.mesh.to_dict()}: a sweep splits no network. Leave it out.")
    require_number("config.extend", config.extend, least=0, whole=True)
    require_objective(config.objective, config.base)
    known, execution = configs.field_paths(config.base), set(execution_fields(config.base))
    for name, grid in _grids(config).items():
        if not grid:
            raise InputError(f"config.grids.{name} is empty: give it at least one axis, such as {LEARNING_RATE}.")
        for path, values in grid.items():
            where = f"config.grids.{name}.{path}"
            if path not in known:
                raise InputError(f"{where} is not a field of the base config: {did_you_mean(path, known)}")
            if not execution.isdisjoint((path, path.partition(".")[0])):
                raise InputError(f"{where} does not change what is trained: remove the axis, set it in config.base.")
            if not values or any(value in values[:i] for i, value in enumerate(values)):
                raise InputError(f"{where} is {values}: give it at least one value, and every value once.")
    paths = {path for grid in _grids(config).values() for path in grid} - {"model.width", "model.depth"}
    if config.x not in paths:
        raise InputError(f"config.x is {config.x!r}, which is no hyperparameter of a grid: use one of {sorted(paths)}.")
    bounded = config.x.rpartition(".")[2] in AVERAGES  # below 1
    if config.extend and (bounded or isinstance(configs.get_field(config.base, config.x), int)):
        raise InputError(f"config.extend is {config.extend}, but {config.x} cannot be extended: set extend to 0.")


def require_objective(objective: str, base: ConfigDict) -> None:
    """`InputError` unless runs of ``base`` measure the loss that ``objective`` names."""
    if objective not in OBJECTIVES:
        raise InputError(f"config.objective is {objective!r}: use {', '.join(OBJECTIVES)}.")
    share = base.data.validation_fraction
    if (objective == VALIDATION and not share) or (objective == TEST and share):
        raise InputError(
            f"config.objective is {objective!r}, and config.base.data.validation_fraction is {share:g}: set a "
            "fraction, such as 0.1, for 'validation', which replaces the test set, and 0 for 'test'."
        )


def _grids(config: ConfigDict) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Name -> dotted field -> values."""
    flat = {name: flatten_dict(grid.to_dict(), sep=".") for name, grid in config.grids.items()}
    return {name: {path: as_tuple(values) for path, values in grid.items()} for name, grid in flat.items()}


def as_tuple(values: Any) -> tuple[Any, ...]:
    """One or several values, NumPy's numbers as Python's."""
    single = isinstance(values, str) or not isinstance(values, Iterable)
    return tuple(value.item() if hasattr(value, "item") else value for value in ((values,) if single else values))


def structure(run: Run) -> str:
    """The part of a run's point that its program fixes."""
    free = {*run.hyperparameters, *([_PRESET] if _ALPHA in run.hyperparameters else [])}
    return json.dumps({path: value for path, value in run.point.items() if path not in free}, sort_keys=True)


def _order(run: Run) -> tuple[float, ...]:
    # The runs of a preset together, then descending learning rates: the highest ones diverge first.
    first = [run.hyperparameters.get(f"{RULE}.{name}", 0.0) for name in ("alpha", "gamma", "width")]
    others = [value for path, value in sorted(run.hyperparameters.items()) if path not in (LEARNING_RATE, SEED)]
    return (*first, -run.hyperparameters[LEARNING_RATE], run.seed, *others)


def extension(config: ConfigDict, runs: Sequence[Run], done: Mapping[str, Record]) -> list[tuple[list[Run], str]]:
    """For every curve whose minimum lies at its edge: runs at one further value of ``config.x``, and a sentence.

    ``runs`` includes earlier extensions; ``done``: hash of a run -> record. For the value see `next_value`.
    """
    result: list[tuple[list[Run], str]] = []
    known = {record.point[config.x] for record in done.values()}
    for curve in curves(runs, config.x):
        losses: dict[float, list[float]] = {}
        for run in (run for run in curve if run.hash in done):
            loss = done[run.hash].loss(config.objective)
            losses.setdefault(run.point[config.x], []).append(math.inf if loss is None else loss)
        value = next_value({x: sum(of_seeds) / len(of_seeds) for x, of_seeds in sorted(losses.items())})
        if value is None:
            continue
        # A known value may differ by rounding. A new one loses the rounding of its last digits.
        same = (other for other in known if math.isclose(other, value, rel_tol=1e-9))
        value = next(same, float(f"{value:.12g}"))
        seeds = {run.config.seed: run for run in curve}
        new = [make_run(config.base, list(run.point), {**run.point, config.x: value}) for run in seeds.values()]
        fields = {path: v for path, v in curve[0].point.items() if path not in (config.x, SEED)}
        label = ", ".join(f"{path.rpartition('.')[2]} {v}" for path, v in fields.items()) or "the curve"
        result.append((new, f"{label}: the best {config.x} is at the edge of the grid; trying {value:.4g} too"))
    return result


def next_value(losses: Mapping[float, float]) -> float | None:
    """The value beyond the edge at which the minimum lies; ``None`` if it lies inside, or values have no ratio.

    It continues the ratio of the last two values; downward if no loss is finite. ``losses``: x -> loss, ascending in x,
    infinite where a run diverged.
    """
    values = list(losses)
    if len(values) < 2 or values[0] <= 0:
        return None
    best = min(values, key=lambda value: losses[value])
    if best == values[0] or math.isinf(losses[best]):
        return values[0] ** 2 / values[1]
    if best == values[-1]:
        return values[-1] ** 2 / values[-2]
    return None
