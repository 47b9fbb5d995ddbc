"""Searches for the best rate at several sizes of one network, in the committed records.

A line is one network with one rule and one set of other hyperparameters: its searches differ in width and depth alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from depthmup_flax.report.optimum import EDGES, ONE_VALUE, find_optimum
from depthmup_flax.report.transfer import exploded
from depthmup_flax.rule.parametrization import PRESETS, Parametrization
from depthmup_flax.search.ladder.law import Search, Size
from depthmup_flax.search.ladder.regret import Curve
from depthmup_flax.storage.sweep_records import LEARNING_RATE, TRAIN, Record, SweepInfo, read_sweep

HERE = pathlib.Path(__file__).parents[1]
PLACES = ("records/*", "records/demonstration/*", "rules/records/*", "rules/version2/records/*")
RULES = ("depth_mup", "completep", "mup", "sp")  # of which laws are fitted
_SIZES = ("model.width", "model.depth")
_LEAST_RATES = 4
_OF_RULE = ("preset", "alpha", "gamma", "inner_gamma", "width")  # fields that name the rule
_WITH_STEPS = ("train.steps", "train.batch_size", "train.average_steps", "optimizer.warmup_steps")
_BETAS = {"b1": 0.9, "b2": 0.999, "momentum": 0.9}
# Their base multiplies branches by far more or less than 1.
_LEFT_OUT = ("block_depth_heatmap", "zero_init")
_LEARNS = 0.02  # of the loss before learning: less is no learning


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """The search at one size: its optimum, and its curve."""

    search: Search
    curve: Curve
    learned: float  # the loss of a constant guess, or of the first steps, minus the lowest


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """Searches of one network under one rule."""

    family: str  # network, optimizer and data
    rule: str
    place: str  # of the records
    base: tuple[int, int]  # width and depth at which multipliers are 1
    sizes: tuple[Measured, ...]  # by width, then depth


def lines() -> list[Line]:
    """All lines of at least two searches, each once."""
    found: list[Line] = []
    seen = set()
    for pattern in PLACES:
        for directory in sorted(HERE.glob(pattern)):
            if not (directory / "sweep.json").exists() or directory.name.startswith(_LEFT_OUT):
                continue
            for line in _lines_of(directory):
                optima = tuple(round(one.search.rate, 3) for one in line.sizes)
                if len(line.sizes) > 1 and (line.rule, optima) not in seen:
                    seen.add((line.rule, optima))
                    found.append(line)
    return found


def _lines_of(directory: pathlib.Path) -> Iterator[Line]:
    sweep = read_sweep([directory])
    info = sweep.info
    if info.x != LEARNING_RATE:
        return
    at_base = _base(info)
    groups: dict[tuple[str, str], dict[tuple[int, ...], list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in sweep.records:
        rest = _rest(info, record.point)
        size = record.width, record.depth, *_steps(info, record.point)
        for rule in _rules(info, record, at_base):
            groups[rule, rest][size].append(record)
    for (rule, _), sizes in groups.items():
        measured = (_measured(info, Size(*size), records) for size, records in sorted(sizes.items()))
        family = _family(info, sizes)
        yield Line(family, rule, str(directory.relative_to(HERE)), at_base, tuple(one for one in measured if one))


def _steps(info: SweepInfo, point: dict[str, Any]) -> tuple[int, int]:
    """Steps, 0 where a sweep does not vary them, and batch size."""
    batch_size = point.get("train.batch_size", info.base["train"]["batch_size"])
    return point.get("train.steps", 0), batch_size


def _rest(info: SweepInfo, point: dict[str, Any]) -> str:
    """What the runs of a line have in common, apart from the rule.

    Warm-up, averages and their betas follow steps and batch size in some sweeps, which is no difference.
    """
    varied = [LEARNING_RATE, "seed", *_SIZES, *(f"parametrization.{name}" for name in _OF_RULE), *_WITH_STEPS]
    k = _steps(info, point)[1] / info.base["train"]["batch_size"]
    for name, usual in _BETAS.items():
        path = f"optimizer.kwargs.{name}"
        before = info.base["optimizer"].get("kwargs", {}).get(name) or usual
        if math.isclose(point.get(path) or before, max(0.0, 1 - k * (1 - before)), abs_tol=1e-6):
            varied.append(path)
    rest = {path: value for path, value in point.items() if path not in varied}
    return json.dumps(rest, sort_keys=True)


def _rules(info: SweepInfo, record: Record, at_base: tuple[int, int]) -> tuple[str, ...]:
    """The rules by which a run was trained: all of them at the base, where they are the same network."""
    section = "parametrization."
    at_point = {path.removeprefix(section): value for path, value in record.point.items() if path.startswith(section)}
    own = {**info.base["parametrization"], **at_point}
    if own.get("inner_gamma") is not None:
        return ()
    if (record.width, record.depth) == at_base:
        return RULES
    changed = {name: own[name] for name in ("alpha", "gamma", "width") if own.get(name) is not None}
    described = PRESETS[own["preset"]].replace(**changed)
    return tuple(rule for rule in RULES if _traits(PRESETS[rule]) == _traits(described))


def _traits(rule: Parametrization) -> tuple[str, float, float]:
    return rule.width, rule.alpha, rule.gamma


def _base(info: SweepInfo) -> tuple[int, int]:
    model = info.base["model"]
    return tuple(model.get(f"base_{name}") or model[name] for name in ("width", "depth"))


def _family(info: SweepInfo, sizes: dict[tuple[int, ...], list[Record]]) -> str:
    point = next(iter(sizes.values()))[0].point
    optimizer = point.get("optimizer.name", info.base["optimizer"]["name"])
    data = info.base["data"].get("name") or ""
    return f"{info.base['model']['name']} {optimizer} {data.rpartition(':')[2]}"


def _measured(info: SweepInfo, size: Size, records: list[Record]) -> Measured | None:
    """``None`` without an optimum inside of at least four rates."""
    rates = sorted({record.point[LEARNING_RATE] for record in records})
    seeds = sorted({record.seed for record in records})
    if len(rates) < _LEAST_RATES:
        return None
    losses = np.full((len(seeds), len(rates)), np.nan)
    ran = np.zeros(losses.shape, bool)
    for record in records:
        place = seeds.index(record.seed), rates.index(record.point[LEARNING_RATE])
        loss = record.loss(TRAIN)
        losses[place] = np.nan if loss is None else loss
        ran[place] = True
    kept = ran.all(0)
    if kept.sum() < _LEAST_RATES:
        return None
    at, losses = np.log2(rates)[kept], losses[:, kept]
    first = records[0].train_loss_slices[0] if records[0].train_loss_slices else math.nan
    chance = info.chance if info.chance is not None else first
    most = chance if info.chance is not None else exploded(chance)
    curve = Curve(at, losses, most)
    search = curve.search(size, 0.0)
    if isinstance(search, str) or find_optimum(at, losses, most=most).flag in (*EDGES, ONE_VALUE):
        return None
    learned = chance - float(np.nanmin(losses.mean(0)))
    return Measured(search, curve, learned) if learned > _LEARNS * chance else None
