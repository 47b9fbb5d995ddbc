"""Extends a grid, value by value, while the minimum of a curve lies at its edge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from depthmup_flax.search.sweep.grid import Run, curves, make_run
from depthmup_flax.storage.records.table import SEED, Record


def extension(config: ConfigDict, runs: Sequence[Run], done: Mapping[str, Record]) -> list[tuple[list[Run], str]]:
    """For every curve whose minimum lies at its edge: runs at one further value of ``config.x``, and a sentence.

    ``runs`` includes earlier extensions; ``done``: hash of a run -> record. For the value see `next_value`.
    """
    result: list[tuple[list[Run], str]] = []
    known = {record.point[config.x] for record in done.values()}
    for curve in curves(runs, config.x):
        value = next_value(_mean_losses(curve, config.x, done, config.objective))
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


def _mean_losses(curve: Sequence[Run], x: str, done: Mapping[str, Record], objective: str) -> dict[float, float]:
    """x -> mean loss over seeds, ascending in x; infinite where a seed diverged."""
    losses: dict[float, list[float]] = {}
    for run in curve:
        if run.hash in done:
            loss = done[run.hash].loss(objective)
            losses.setdefault(run.point[x], []).append(math.inf if loss is None else loss)
    return {value: sum(of_seeds) / len(of_seeds) for value, of_seeds in sorted(losses.items())}


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
