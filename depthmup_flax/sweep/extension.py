"""Where a curve's minimum lies at an end of its grid, the grid was too short: one value more there."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.records import COMPLETED, Record
from depthmup_flax.sweep.grid import Run, curves, make_run


def extension(config: ConfigDict, runs: Sequence[Run], done: Mapping[str, Record]) -> list[tuple[list[Run], str]]:
    """Runs at one more value of ``config.x`` for every curve that needs it; each curve's, with a sentence.

    The next value continues the ratio of the last two. A curve without a finite loss goes on downwards.
    """
    found: list[tuple[list[Run], str]] = []
    known = {record.point[config.x] for record in done.values()}
    for curve in curves(runs, config.x):
        value = next_value(mean_losses(curve, config.x, done))
        if value is None:
            continue
        value = _as_known(value, known)
        seeds = {run.config.seed: run for run in curve}
        new = [make_run(config.base, list(run.point), {**run.point, config.x: value}) for run in seeds.values()]
        fields = {k: v for k, v in curve[0].point.items() if k not in (config.x, "seed")}
        where = ", ".join(f"{path.rpartition('.')[2]} {v}" for path, v in fields.items()) or "the curve"
        found.append((new, f"{where}: the best {config.x} is at the end of the grid; trying {value:.4g} too"))
    return found


def mean_losses(curve: Sequence[Run], x: str, done: Mapping[str, Record]) -> dict[float, float]:
    """x -> mean training loss over seeds, infinite where one diverged; ascending in x."""
    losses: dict[float, list[float]] = {}
    for run in curve:
        if run.hash in done:
            losses.setdefault(run.point[x], []).append(_loss(done[run.hash]))
    return {value: sum(found) / len(found) for value, found in sorted(losses.items())}


def next_value(losses: Mapping[float, float]) -> float | None:
    """The value to try beyond an end of the grid; ``None`` if the minimum is inside, or one value says nothing.

    ``losses`` is ascending in x; infinite losses are of runs that diverged.
    """
    values: list[Any] = list(losses)
    if len(values) < 2 or values[0] <= 0:
        return None
    best = min(values, key=lambda value: losses[value])
    if best == values[0] or math.isinf(losses[best]):
        return values[0] ** 2 / values[1]
    if best == values[-1]:
        return values[-1] ** 2 / values[-2]
    return None


def _as_known(value: float, known: Collection[float]) -> float:
    """A value that was run and differs in rounding alone, or this one without the noise of its last digits."""
    same = [other for other in known if math.isclose(other, value, rel_tol=1e-9)]
    return same[0] if same else float(f"{value:.12g}")


def _loss(record: Record) -> float:
    if record.status != COMPLETED or record.train_loss_avg is None:
        return math.inf
    return record.train_loss_avg
