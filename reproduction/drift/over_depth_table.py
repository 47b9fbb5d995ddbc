"""What the sweeps of `reproduction.drift.over_depth` show, as over_depth.md fixes it. No JAX."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from depthmup_flax.report.transfer import Variant, analyze
from depthmup_flax.storage.sweep_records import Record, read_sweep
from reproduction.drift import table
from reproduction.drift.over_depth import (
    AS_IT_IS,
    CONV,
    CONV_USUAL,
    DEPTH,
    GPT,
    GPT_DEPTHS,
    GPT_USUAL,
    LONG,
    PARTS,
    ROLES,
    doubled,
)

HEADER = ("network", "best rate: base", "drift", "regret", "lowest loss: base", "deep", "n")
ROLES_HEADER = ("rate doubled of", *(f"gain at depth {depth}" for depth in GPT_DEPTHS))
_SWEEPS = {
    "conv": ("convolutional", CONV, CONV_USUAL),
    "conv-long": ("convolutional", LONG, CONV_USUAL),
    "gpt": ("GPT", GPT, GPT_USUAL),
    "gpt-parts": ("GPT", PARTS, GPT_USUAL),
}


def rows(records: pathlib.Path) -> list[tuple[str, ...]]:
    """A row below `HEADER` for each network of the sweeps that are done, from its lowest depth to its highest."""
    found = []
    for sweep, (network, variants, usual) in _SWEEPS.items():
        directory = records / f"over-depth-{sweep}"
        if not (directory / "sweep.json").exists():
            continue
        read = read_sweep([directory])
        for name, changed in variants.items():
            own = [record for record in read.records if _has(record, {**usual, **changed})]
            (variant,) = analyze(read.info, own).variants
            found.append(_row(f"{network}, {name}", variant))
    return found


def _has(record: Record, point: Mapping[str, object]) -> bool:
    return all(record.point[path] == value for path, value in point.items())


def _row(name: str, variant: Variant) -> tuple[str, ...]:
    result = table.Result(variant, excess=math.nan)
    deep = variant.rows[-1]
    return (
        name,
        table.best_cell(result.base),
        table.drift_cell(deep),
        table.regret_cell(result, deep),
        table.lowest_cell(result.base),
        table.lowest_cell(deep),
        table.seeds_cell(result),
    )


def role_rows(records: pathlib.Path) -> list[tuple[str, ...]]:
    """A row below `ROLES_HEADER` for each role: the loss as found minus that with its rate doubled, paired by seeds."""
    directory = records / "over-depth-gpt-roles"
    if not (directory / "sweep.json").exists():
        return []
    read = read_sweep([directory])
    losses = {
        (name, depth): _by_seed(read.records, {**doubled(roles), DEPTH: depth}, read.info.objective)
        for name, roles in ROLES.items()
        for depth in GPT_DEPTHS
    }
    return [
        (name, *(_mean(losses[AS_IT_IS, depth] - losses[name, depth]) for depth in GPT_DEPTHS))
        for name in ROLES
        if name != AS_IT_IS
    ]


def _by_seed(records: Sequence[Record], point: Mapping[str, object], objective: str) -> np.ndarray:
    """(S,)."""
    found = {record.seed: record.loss(objective) for record in records if _has(record, point)}
    return np.array([np.nan if found[seed] is None else found[seed] for seed in sorted(found)])


def _mean(values: np.ndarray) -> str:
    """With Student's 95 % interval."""
    return f"{values.mean():+.3f} ± {table.half_width_of(values):.3f}"
