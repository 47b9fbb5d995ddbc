"""What factors of the branches' decay or rate cost at each size, as registration.md fixes it. No JAX."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.special

from depthmup_flax.storage.sweep_records import read_sweep
from depthmup_flax.util.table import Table
from reproduction.factors.cells import CELLS, DEPTH, MARIN, SEEDS, SIZES, WIDTH, Cell

_CHANCE = math.log(10)
HEADER = ("network", "size", "best factor, log2", "rule", "factor", "cost (95 %)", "n")


@dataclasses.dataclass(frozen=True)
class Curve:
    """The losses of a size over the factors."""

    factors: tuple[float, ...]
    losses: np.ndarray  # [seeds, factors], as shares of what the base learns

    @property
    def lowest(self) -> int:
        """The index of the factor with the lowest mean."""
        return int(np.argmin(self.losses.mean(0)))

    def best(self) -> tuple[float, float]:
        """The base-2 logarithm of the best factor, by a parabola, and half of its 95 % interval (jackknife)."""
        seeds = len(self.losses)
        without = [self._minimum(np.delete(self.losses, i, 0)) for i in range(seeds)]
        error = math.sqrt((seeds - 1) * np.var(without))
        return self._minimum(self.losses), _student(seeds) * error

    def _minimum(self, losses: np.ndarray) -> float:
        x, y = np.log2(self.factors), losses.mean(0)
        i = int(np.clip(np.argmin(y), 1, len(x) - 2))
        a, b, _ = np.polyfit(x[i - 1 : i + 2], y[i - 1 : i + 2], 2)
        return float(np.clip(-b / (2 * a), x[i - 1], x[i + 1])) if a > 0 else float(x[np.argmin(y)])

    def cost(self, factor: float) -> tuple[float, float]:
        """The mean loss of a factor above the best one's of the grid; half of the interval, paired by seeds."""
        differences = self._at(factor) - self.losses[:, self.lowest]
        return float(differences.mean()), half_width(differences)

    def above_ours(self, factor: float) -> np.ndarray:
        """The losses of the seeds at a factor above those at 1."""
        return self._at(factor) - self._at(1.0)

    def _at(self, factor: float) -> np.ndarray:
        return np.asarray(self.losses[:, np.argmin(np.abs(np.log2(self.factors) - math.log2(factor)))])


def half_width(differences: np.ndarray) -> float:
    """Of Student's 95 % interval of a mean."""
    return float(_student(len(differences)) * np.std(differences, ddof=1) / math.sqrt(len(differences)))


def _student(count: int) -> float:
    return float(scipy.special.stdtrit(count - 1, 0.975))


def rules(cell: Cell, size: tuple[int, int]) -> Mapping[str, float]:
    """The factors of the rules in question at a size, over the package's."""
    m, r = size[0] / WIDTH, size[1] / DEPTH
    if cell.varied == "decay":
        over_depth = {"r^-1/2": r**-0.5, "1/r": 1 / r} if r > 1 else {}
        return {"constant (ours)": 1.0, **over_depth}
    found = {"m^-1/2 r^-1/2 (ours)": 1.0}
    if r > 1:
        found["m^-1/2"] = r**0.5
    if m > 1:
        found["r^-1/2"] = m**0.5
    if m > 1 and r > 1:
        found |= {"none": (m * r) ** 0.5, "m^-.37, depth growing along (Marin)": MARIN}
    return found


def read(records: pathlib.Path, cell: Cell) -> dict[tuple[int, int], Curve]:
    """The curves of a cell, of the sizes that were run."""
    found = {}
    for part, size in cell.sizes.items():
        if not (records / cell.name / part / "sweep.json").exists():
            continue
        known = {}
        for record in read_sweep([records / cell.name / part]).records:
            known[_nearest(cell, cell.factor(record)), record.seed] = cell.loss(record)
        losses = [[known[factor, seed] for factor in cell.factors] for seed in range(SEEDS)]
        learned = _CHANCE - cell.lowest(records / cell.name / "base")
        found[size] = Curve(cell.factors, np.array(losses) / learned)
    return found


def _nearest(cell: Cell, factor: float) -> float:
    return min(cell.factors, key=lambda known: abs(math.log2(known / factor)))


def rows(records: pathlib.Path, varied: str) -> list[tuple[str, ...]]:
    """The lines below `HEADER` of the cells in which decay or rate was varied."""
    found = []
    for cell in CELLS:
        for size, curve in read(records, cell).items() if cell.varied == varied else ():
            best, half = curve.best()
            edge = " (edge)" if curve.lowest in (0, len(curve.factors) - 1) else ""
            for rule, factor in rules(cell, size).items():
                cost, of_cost = curve.cost(factor)
                numbers = (f"{best:+.1f} ± {half:.1f}{edge}", rule, f"{factor:.3g}", f"{cost:.4f} ± {of_cost:.4f}")
                found.append((cell.network, f"{size[0]} x {size[1]}", *numbers, str(len(curve.losses))))
    return found


def decisions(records: pathlib.Path, varied: str) -> list[str]:
    """What each rule costs more than the package's, the mean over the sizes that decide, paired by seeds."""
    found = []
    for cell in CELLS:
        curves = read(records, cell) if cell.varied == varied else {}
        for own, names in (("deep", ("r^-1/2", "1/r", "m^-1/2")), ("wide", ("r^-1/2",))):
            some = [size for size in (SIZES[own], SIZES["both"]) if size in curves and SIZES[own] in curves]
            for rule, factor in rules(cell, SIZES[own]).items() if some else ():
                if rule in names:
                    differences = np.mean([curves[size].above_ours(factor) for size in some], axis=0)
                    where = " and ".join(f"{width} x {depth}" for width, depth in some)
                    number = f"{differences.mean():+.4f} ± {half_width(differences):.4f}"
                    found.append(f"{cell.network}, {rule} minus ours, {where}: {number}")
    return found


def tuned(records: pathlib.Path) -> list[str]:
    """A sentence for each cell with the base's best numbers."""
    return [
        f"{cell.name}: " + ", ".join(f"{path.split('.')[1]} {value:g}" for path, value in best.items())
        for cell in CELLS
        if (records / cell.name / "base" / "sweep.json").exists() and (best := cell.best(records / cell.name / "base"))
    ]


def text(records: pathlib.Path) -> str:
    """Both tables."""
    lines: Sequence[str] = tuned(records)
    for varied in ("decay", "rate"):
        lines = [*lines, "", varied, *Table(HEADER, rows(records, varied), "<<<<>><").lines]
        lines = [*lines, "", *decisions(records, varied)]
    return "\n".join(lines)
