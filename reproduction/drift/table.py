"""Drift, regret and lowest losses of the cells that are done, as registration.md fixes them. No JAX."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence

import numpy as np
import scipy.special

from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.transfer import Row, Variant, analyze
from depthmup_flax.storage.sweep_records import read_sweep
from depthmup_flax.util.table import Table
from reproduction.drift.cells import BOTH, CELLS, DEEPER, KNOWN, NETWORKS, RANDOM, WIDER, ZERO, Cell

START = "start.json"  # of a cell: the loss above a constant guess before the first step
NOT_RUN = "not run"
LESS = 0.01  # of what is learned: the smallest difference that decides


@dataclasses.dataclass(frozen=True)
class Result:
    """What a cell's records show; losses as shares of what its base learns."""

    variant: Variant
    excess: float  # at the base's start, as that share; NaN if it was not measured

    @property
    def base(self) -> Row:
        """At 32 x 4."""
        return self.variant.base

    @property
    def learned(self) -> float:
        """The loss of a constant guess minus the base's lowest, in nats."""
        return self.variant.initial_loss - lowest(self.base)

    def at(self, size: tuple[int, int]) -> Row | None:
        """The row of a size; ``None`` if it was not run."""
        return next((row for row in self.variant.rows if row.size == size), None)

    @property
    def targets(self) -> list[Row]:
        """All sizes but the base."""
        return [row for row in self.variant.rows if row is not self.base]

    def regret(self, row: Row) -> float:
        """The share that the base's best rate costs at a size; infinite if it diverges there."""
        return row.regret.value / self.learned if isinstance(row.regret, Estimate) else math.inf

    def regret_interval(self, row: Row) -> tuple[float, float] | None:
        """The regret's 95 % interval, from 0."""
        ends = row.regret.interval if isinstance(row.regret, Estimate) else None
        return None if ends is None else (max(ends[0], 0.0) / self.learned, ends[1] / self.learned)

    @property
    def worst(self) -> Row:
        """The size at which the base's rate costs most."""
        return max(self.targets, key=self.regret)


def lowest(row: Row) -> float:
    """The lowest mean loss at a size."""
    return row.optimum.loss.value if row.optimum else math.inf


def read(records: pathlib.Path, cell: Cell) -> Result | None:
    """The result of a cell; ``None`` if it was not run."""
    directory = records / cell.name
    if not (directory / "sweep.json").exists():
        return None
    found = read_sweep([directory])
    (variant,) = analyze(found.info, found.records).variants
    start = directory / START
    result = Result(variant, math.nan)
    if not start.exists():
        return result
    excess = json.loads(start.read_text())["excess"]
    return dataclasses.replace(result, excess=excess / result.learned)


def text(records: pathlib.Path) -> str:
    """The table, the cells that were not run, and what is decided."""
    results = {cell: result for cell in CELLS if (result := read(records, cell)) is not None}
    left = [cell.name for cell in CELLS if cell not in results]
    header = (
        "network", "optimizer", "readout", "best rate", "drift, width", "drift, depth", "drift, both", "worst regret",
        "lowest loss: base", "wide", "deep", "start", "n",
    )  # fmt: skip
    rows = [_row(cell, result) for cell, result in sorted(results.items(), key=_order)]
    lines = Table(header, rows, "<<<" + ">" * (len(header) - 3)).lines
    decisions = [decision(cell, results) for cell in results if cell.start == ZERO]
    return "\n".join([*lines, "", *filter(None, decisions), "", f"Not run: {', '.join(left) or 'none'}."])


def _order(pair: tuple[Cell, Result]) -> tuple[object, ...]:
    cell = pair[0]
    return (list(NETWORKS).index(cell.network), cell.times, list(NETWORKS["mlp"].rates).index(cell.optimizer))


def _row(cell: Cell, result: Result) -> tuple[str, ...]:
    network = KNOWN[cell.network]
    length = f", {network.steps * cell.times} steps" if cell.times > 1 else ""
    worst = result.worst
    sizes = [result.at(size) for size in (WIDER, DEEPER, BOTH)]
    rate = f"{result.base.optimum.at.value:.1f}" if result.base.optimum else "diverges"
    return (
        cell.network + length,
        cell.optimizer,
        cell.start,
        rate + _edge(result.base),
        *map(_drift, sizes),
        f"{_share(result.regret(worst))}{_interval(result.regret_interval(worst))} at {_size(worst.size)}",
        *(f"{lowest(row):.3f}" if row else NOT_RUN for row in (result.base, *sizes[:2])),
        NOT_RUN if math.isnan(result.excess) else f"{result.excess:.2f}",
        str(len(result.base.curve.seeds)),
    )


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _edge(row: Row) -> str:
    return {"lowest of the grid": " (edge)", "highest of the grid": " (edge)"}.get(row.edge, "")


def _drift(row: Row | None) -> str:
    if row is None:
        return NOT_RUN
    if row.shift is None:
        return "unknown"
    half = row.shift.half_width
    return f"{row.bound}{row.shift.value:+.1f}" + ("" if half is None else f" ± {half:.1f}")


def _share(value: float) -> str:
    return "diverges" if math.isinf(value) else f"{value:.3f}"


def _interval(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f" ({ends[0]:.3f} to {ends[1]:.3f})"


def decision(cell: Cell, results: dict[Cell, Result]) -> str:
    """Whether zero drifts less than random, and where it costs, for a network and optimizer; "" without a pair."""
    random = results.get(dataclasses.replace(cell, start=RANDOM))
    if random is None:
        return ""
    zero = results[cell]
    less = drifts_less(random, zero)
    costs = [f"{_size(size)} by {share:.3f} (± {half:.3f})" for size, share, half in costs_of(random, zero)]
    gains = [f"{_size(size)} by {share:.3f} (± {half:.3f})" for size, share, half in costs_of(zero, random)]
    name = cell.name.removesuffix(f"-{ZERO}")
    return (
        f"{name}: zero drifts less: {'yes' if less else 'no'}; "
        f"costs: {', '.join(costs) or 'nowhere'}; gains: {', '.join(gains) or 'nowhere'}."
    )


def drifts_less(random: Result, zero: Result) -> bool:
    """Decision 1 of registration.md."""
    of_zero, worst = zero.regret(zero.worst), random.worst
    ends = random.regret_interval(worst)
    if random.regret(worst) <= of_zero + LESS:
        return False
    return ends is None or ends[0] > of_zero  # no interval: the base's rate diverges there


def costs_of(first: Result, second: Result) -> list[tuple[tuple[int, int], float, float]]:
    """Decision 2: sizes at which the second start's lowest loss is higher: size, share of the first's, half-width."""
    found = []
    for row in first.variant.rows:
        other = second.at(row.size)
        if other is None or row.optimum is None or other.optimum is None:
            continue
        differences = at_lowest(other) - at_lowest(row)
        share = differences.mean() / first.learned
        half = _half_width(differences) / first.learned
        if share > LESS and share > half:
            found.append((row.size, float(share), half))
    return found


def at_lowest(row: Row) -> np.ndarray:
    """The losses of the seeds (S,) at the rate with the lowest mean."""
    assert row.optimum is not None
    return np.asarray(row.curve.losses[:, row.optimum.grid])


def _half_width(differences: Sequence[float] | np.ndarray) -> float:
    """Of Student's 95 % interval of a mean."""
    count = len(differences)
    return float(scipy.special.stdtrit(count - 1, 0.975) * np.std(differences, ddof=1) / math.sqrt(count))
