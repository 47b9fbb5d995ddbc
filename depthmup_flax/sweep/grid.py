"""From a sweep's config to its runs: named grids over the fields of a base config.

A sweep's config is Python, as a run's is: ``get_config(scale)`` returns `sweep_config`, which holds a whole base config
and grids. A grid is the product of its axes; the sweep is the union of its grids, each run once.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.errors import InputError, did_you_mean
from depthmup_flax.records import CONTINUOUS, LEARNING_RATE, SEED, SweepInfo
from depthmup_flax.training import config as configs

SCALES = ("smoke", "cpu", "gpu", "paper")
_POSITIVE = (LEARNING_RATE, "parametrization.gamma0")

Grids = Mapping[str, Mapping[str, Sequence[Any]]]


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a sweep.

    Attributes:
      point: dotted field -> value for every axis of the sweep.
      config: the run's whole config; ``train.py`` would train the same.
      hash: of the config.
    """

    point: dict[str, Any]
    config: ConfigDict
    hash: str


def sweep_config(
    base: ConfigDict,
    grids: Grids,
    *,
    figure: str,
    title: str,
    scale: str,
    x: str = LEARNING_RATE,
    extend: int = 0,
) -> ConfigDict:
    """The config of a sweep.

    Args:
      base: config of a run, from `depthmup_flax.training.config.default_config` or a config file.
      grids: name -> dotted field -> values. On the command line: ``--config.grids.depths.model.depth="(4, 8)"``.
      figure: the id of what the sweep shows.
      title: a sentence for people.
      scale: ``smoke``, ``cpu``, ``gpu`` or ``paper``, as given to ``get_config``.
      x: the axis along which an optimum is looked for.
      extend: how many values may be added to ``x`` at an end of a curve, one by one, while its minimum lies there.
    """
    nested = {name: _nested(grid) for name, grid in grids.items()}
    return ConfigDict(
        {"figure": figure, "title": title, "scale": scale, "x": x, "extend": extend, "grids": nested, "base": base}
    )


def at_scale(scale: str, **choices: Any) -> Any:
    """The choice for a scale, or ``other``; InputError for a scale that there is not."""
    known = SCALES if "other" in choices else tuple(choices)
    if scale not in known:
        raise InputError(f"config.scale is {scale!r}: use {', '.join(known)}.")
    return choices.get(scale, choices.get("other"))


def powers_of_two(low: float, high: float, step: float = 1.0) -> tuple[float, ...]:
    """``2^low, 2^(low + step), ..., 2^high``."""
    return tuple(2.0 ** (low + i * step) for i in range(round((high - low) / step) + 1))


def sweep_info(config: ConfigDict) -> SweepInfo:
    """What `depthmup_flax.records` keeps of a sweep's config."""
    axes: dict[str, list[Any]] = {}
    for _, grid in _grids(config):
        for path, values in grid.items():
            found = axes.setdefault(path, [])
            found += [value for value in values if value not in found]
    base = json.loads(configs.to_json(config.base))
    # An axis that one grid has and another has not is the base's there.
    for path, found in axes.items():
        for _, grid in _grids(config):
            if path not in grid and configs.get_field(config.base, path) not in found:
                found.append(configs.get_field(config.base, path))
        if all(isinstance(value, (int, float)) for value in found):
            found.sort()
    return SweepInfo(config.figure, config.title, config.scale, config.x, axes, base)


def expand(config: ConfigDict) -> list[Run]:
    """Every run, once, in the order of the grids.

    Raises:
      InputError: an axis that the base config has not, an axis without values or with one twice, a learning rate that
        is not positive, ``x`` without an axis, or a run that `depthmup_flax.training.config.validate` refuses.
    """
    _check(config)
    axes = list(sweep_info(config).axes)
    runs: dict[str, Run] = {}
    for _, grid in _grids(config):
        for values in itertools.product(*grid.values()):
            run = make_run(config.base, axes, dict(zip(grid, values, strict=True)))
            runs.setdefault(run.hash, run)
    return list(runs.values())


def make_run(base: ConfigDict, axes: Sequence[str], values: Mapping[str, Any]) -> Run:
    """The run with some fields of the base config changed; InputError if `validate` refuses it."""
    config = base.copy_and_resolve_references()
    for path, value in values.items():
        configs.set_field(config, path, value)
    configs.validate(config)
    point = {path: configs.get_field(config, path) for path in axes}
    return Run(point, config, configs.config_hash(config))


def structural_groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ in continuous fields alone, each group sorted so that runs that diverge early are together."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_structure(run.config), []).append(run)
    return [sorted(group, key=_continuous_values) for group in groups.values()]


def curves(runs: Sequence[Run], x: str) -> list[list[Run]]:
    """Runs that differ in ``x`` and the seed alone."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        rest = {path: value for path, value in run.point.items() if path not in (x, "seed")}
        found.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    return list(found.values())


def shard_of(runs: Sequence[Run], x: str, shard: tuple[int, int], cost: Mapping[str, float]) -> list[Run]:
    """The ``i``-th of ``n`` disjoint parts of about equal cost; a curve stays whole, and neighbors stay together.

    ``cost`` maps a run's hash to its cost in any unit.
    """
    index, count = shard
    pieces = [curve for group in structural_groups(runs) for curve in curves(group, x)]
    total = sum(cost[run.hash] for run in runs)
    mine: list[Run] = []
    before = 0.0
    for piece in pieces:
        size = sum(cost[run.hash] for run in piece)
        # A piece belongs to the shard in which its middle lies.
        if min(count - 1, int((before + size / 2) / total * count)) == index:
            mine += piece
        before += size
    return mine


def _check(config: ConfigDict) -> None:
    if "grids" not in config:
        raise InputError("this config is a run's, without grids: use train.py, or a sweep's such as configs/sweeps/.")
    configs.validate(config.base)
    if config.base.mesh.to_dict() != configs.default_config().mesh.to_dict():
        raise InputError(
            f"mesh is {config.base.mesh.to_dict()}, but a sweep trains whole networks on every device: leave "
            "config.base.mesh as it is, and train networks that need several devices with train.py."
        )
    if not len(config.grids):
        raise InputError("config.grids is empty: name at least one grid, such as grids={'rates': {...}}.")
    if not isinstance(config.extend, int) or config.extend < 0:
        raise InputError(f"config.extend is {config.extend!r}: use a whole number of at least 0.")
    paths = set()
    for name, grid in _grids(config):
        if not grid:
            raise InputError(f"config.grids.{name} has no axis: give it one, such as {LEARNING_RATE}.")
        for path, values in grid.items():
            _check_axis(config.base, f"config.grids.{name}.{path}", path, values)
            paths.add(path)
    if config.x not in paths:
        raise InputError(f"config.x is {config.x!r}, which no grid has as an axis: {did_you_mean(config.x, paths)}")
    if config.x in ("model.width", "model.depth"):
        raise InputError(f"config.x is {config.x!r}: an optimum is looked for along a hyperparameter, not a size.")
    if config.extend and isinstance(configs.get_field(config.base, config.x), int):
        raise InputError(f"config.extend is {config.extend}, but {config.x} takes whole numbers: set extend to 0.")


def _check_axis(base: ConfigDict, where: str, path: str, values: Sequence[Any]) -> None:
    known = configs.field_paths(base)
    if path not in known:
        raise InputError(f"{where} is no field of the base config: {did_you_mean(path, known)}")
    if not values:
        raise InputError(f"{where} is empty: give it at least one value.")
    if path in configs.EXECUTION or path.partition(".")[0] in configs.EXECUTION:
        raise InputError(f"{where} is about how a run is computed, not what is trained: all its values give one run.")
    twice = [value for i, value in enumerate(values) if value in list(values)[:i]]
    if twice:
        raise InputError(f"{where} has {twice[0]!r} twice: give every value once.")
    if path in _POSITIVE:
        for value in values:
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise InputError(f"{where} has {value!r}: use positive numbers.")


def _grids(config: ConfigDict) -> Iterator[tuple[str, dict[str, tuple[Any, ...]]]]:
    for name, grid in config.grids.items():
        yield name, dict(_leaves(grid, ""))


def _leaves(tree: Any, prefix: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for name, value in tree.items():
        if isinstance(value, ConfigDict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _nested(grid: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, values in grid.items():
        *sections, name = path.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        alone = isinstance(values, str) or not isinstance(values, Iterable)
        node[name] = tuple(_plain(value) for value in ((values,) if alone else values))
    return tree


def _plain(value: Any) -> Any:
    """Numbers of NumPy as Python's."""
    return value.item() if hasattr(value, "item") else value


def _structure(config: ConfigDict) -> str:
    fixed = config.copy_and_resolve_references()
    with fixed.ignore_type():
        for path in (SEED, *CONTINUOUS):
            if configs.get_field(fixed, path) is not None:
                configs.set_field(fixed, path, 0)
    return configs.to_json(fixed)


def _continuous_values(run: Run) -> tuple[float, ...]:
    # High learning rates first: they diverge together, and soon.
    others = [path for path in (SEED, *CONTINUOUS) if path != LEARNING_RATE]
    return (
        -configs.get_field(run.config, LEARNING_RATE),
        *(configs.get_field(run.config, path) or 0.0 for path in others),
    )
