"""Drift, regret and lowest losses of the cells that are done, as registration.md fixes them. No JAX."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.special

from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.transfer import Row, Variant, analyze
from depthmup_flax.storage.sweep_records import read_sweep
from depthmup_flax.util.table import Table
from reproduction.drift.cells import (
    BOTH,
    CELLS,
    DEEPER,
    KNOWN,
    NETWORKS,
    RANDOM,
    STARTS,
    TEN_CELLS,
    WIDER,
    ZERO,
    Cell,
)

START = "start.json"  # of a cell: the loss above that of equal logits before the first step
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


HEADER = (
    "network", "optimizer", "readout", "best rate", "drift: width", "depth", "both", "worst regret",
    "lowest loss: base", "wide", "deep", "start", "n",
)  # fmt: skip
TEN_HEADER = ("cell", "optimizer", "readout", "best rate", "drift", "regret", "lowest loss: base", "both", "start", "n")


def results(records: pathlib.Path, cells: Sequence[Cell] = CELLS) -> dict[Cell, Result]:
    """The results of the cells that were run, network by network."""
    found = {cell: result for cell in cells if (result := read(records, cell)) is not None}
    return dict(sorted(found.items(), key=_order))


def text(records: pathlib.Path) -> str:
    """The tables, what is decided, and the cells that were not run."""
    found, ten = results(records), results(records, TEN_CELLS)
    tables = [
        *Table(HEADER, list(map(row, found, found.values())), "<<<" + ">" * (len(HEADER) - 3)).lines,
        "",
        *Table(TEN_HEADER, list(map(ten_row, ten, ten.values())), "<<<" + ">" * (len(TEN_HEADER) - 3)).lines,
    ]
    return "\n".join([*tables, "", *decisions(found), "", not_run(records)])


def decisions(found: Mapping[Cell, Result]) -> list[str]:
    """A sentence for each network and optimizer of which both starts were run."""
    return [decision(cell, found) for cell in found if cell.start == ZERO and _random(cell) in found]


def not_run(records: pathlib.Path) -> str:
    """A sentence with the cells that the records lack."""
    names = [cell.name for cell in (*CELLS, *TEN_CELLS) if not (records / cell.name / "sweep.json").exists()]
    return f"Not run: {', '.join(names) or 'none'}."


def _order(pair: tuple[Cell, Result]) -> tuple[object, ...]:
    cell = pair[0]
    of_optimizer = list(NETWORKS["mlp"].rates).index(cell.optimizer)
    return (list(KNOWN).index(cell.network), cell.times, of_optimizer, STARTS.index(cell.start))


def _random(cell: Cell) -> Cell:
    return dataclasses.replace(cell, start=RANDOM)


def row(cell: Cell, result: Result) -> tuple[str, ...]:
    """A cell's line below `HEADER`."""
    network = KNOWN[cell.network]
    length = f", {network.steps * cell.times} steps" if cell.times > 1 else ""
    sizes = [result.at(size) for size in (WIDER, DEEPER, BOTH)]
    return (
        cell.network + length,
        cell.optimizer,
        cell.start,
        best_cell(result.base),
        *map(drift_cell, sizes),
        f"{regret_cell(result, result.worst)} at {_size(result.worst.size)}",
        *map(lowest_cell, (result.base, *sizes[:2])),
        _start(result),
        seeds_cell(result),
    )


def ten_row(cell: Cell, result: Result) -> tuple[str, ...]:
    """A registered cell's line below `TEN_HEADER`."""
    both = result.at(BOTH)
    return (
        cell.network.removeprefix("ten, "),
        cell.optimizer,
        cell.start,
        best_cell(result.base),
        drift_cell(both),
        NOT_RUN if both is None else regret_cell(result, both),
        lowest_cell(result.base),
        lowest_cell(both),
        _start(result),
        seeds_cell(result),
    )


def best_cell(base: Row) -> str:
    """The base's best rate, in octaves."""
    rate = f"{base.optimum.at.value:.1f}" if base.optimum else "diverges"
    return rate + (" (edge)" if base.edge else "")


def regret_cell(result: Result, at: Row) -> str:
    """A regret with its interval."""
    return _share(result.regret(at)) + _interval(result.regret_interval(at))


def lowest_cell(at: Row | None) -> str:
    """The lowest loss at a size."""
    return NOT_RUN if at is None else f"{lowest(at):.3f}"


def _start(result: Result) -> str:
    return NOT_RUN if math.isnan(result.excess) else f"{abs(result.excess):.2f}"


def seeds_cell(result: Result) -> str:
    """Their number."""
    return str(len(result.base.curve.seeds))


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def drift_cell(at: Row | None) -> str:
    """A best rate minus the base's, in octaves."""
    if at is None:
        return NOT_RUN
    if at.shift is None:
        return "unknown"
    half = at.shift.half_width
    return f"{at.bound}{at.shift.value:+.1f}" + ("" if half is None else f" ± {half:.1f}")


def _share(value: float) -> str:
    return "diverges" if math.isinf(value) else f"{value:.3f}"


def _interval(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f" ({ends[0]:.3f} to {ends[1]:.3f})"


def decision(cell: Cell, found: Mapping[Cell, Result]) -> str:
    """Whether zero drifts less than random, and where it costs or gains."""
    random, zero = found[_random(cell)], found[cell]
    less = "less" if drifts_less(random, zero) else "not less"
    name = cell.name.removesuffix(f"-{ZERO}")
    return f"{name}: zero drifts {less}; costs {_sizes(random, zero)}; gains {_sizes(zero, random)}."


def _sizes(first: Result, second: Result) -> str:
    listed = [f"{share:.3f} ± {half:.3f} at {_size(size)}" for size, share, half in costs_of(first, second)]
    return ", ".join(listed) or "nowhere"


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
        half = half_width_of(differences) / first.learned
        if share > LESS and share > half:
            found.append((row.size, float(share), half))
    return found


def at_lowest(row: Row) -> np.ndarray:
    """The losses of the seeds (S,) at the rate with the lowest mean."""
    assert row.optimum is not None
    return np.asarray(row.curve.losses[:, row.optimum.grid])


def half_width_of(differences: Sequence[float] | np.ndarray) -> float:
    """Of Student's 95 % interval of a mean."""
    count = len(differences)
    return float(scipy.special.stdtrit(count - 1, 0.975) * np.std(differences, ddof=1) / math.sqrt(count))
