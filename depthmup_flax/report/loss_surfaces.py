"""A sweep's records as arrays: which axis plays which part, and one loss surface per variant and size.

Letters in shapes: S seeds, Y values of the second continuous axis (1 without one), X values of x, T time slices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from depthmup_flax.errors import InputError
from depthmup_flax.records import COMPLETED, CONTINUOUS, SEED, Record, SweepInfo

# How a network's depth and width are set; what came of it is in the records.
_SIZES = ("model.width", "model.depth")
_STAGES = "model.stage_sizes"


@dataclasses.dataclass(frozen=True)
class Scale:
    """An axis of numbers. Its coordinate is log2 of the value if all are positive, else the value.

    Attributes:
      axis: dotted config field.
      values: ascending.
    """

    axis: str
    values: tuple[float, ...]

    @property
    def name(self) -> str:
        """For people: ``learning rate``."""
        return short(self.axis).replace("_", " ")

    @property
    def log(self) -> bool:
        """Whether the coordinate is log2."""
        return min(self.values) > 0

    @property
    def unit(self) -> str:
        """Of differences of the coordinate."""
        return "octaves" if self.log else f"units of {self.name}"

    def coordinate(self, values: Any) -> Any:
        """Value(s) -> coordinate(s)."""
        return np.log2(values) if self.log else np.asarray(values, np.float64)

    def value(self, coordinate: float) -> float:
        """The inverse of `coordinate`."""
        return 2.0**coordinate if self.log else float(coordinate)


@dataclasses.dataclass(frozen=True)
class Roles:
    """What each axis of a sweep is for; ``variants`` are those whose combinations are compared side by side."""

    x: Scale
    second: Scale | None
    variants: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Surface:
    """All runs of one variant at one size.

    Attributes:
      variant: short name, empty if the sweep has only one.
      width, depth, parameters: of the network.
      seeds: (S,) those of any run here.
      x, y: (X,), (Y,) axis values.
      losses: (S, Y, X) mean training loss at the end; NaN if the run diverged or has not ended.
      ended, diverged: (Y, X) how many runs did.
      slices: (S, Y, X, T) mean training loss of each time slice, NaN as above.
      slice_ends: (T,) steps.
    """

    variant: str
    width: int
    depth: int
    parameters: int
    seeds: tuple[int, ...]
    x: np.ndarray
    y: np.ndarray
    losses: np.ndarray
    ended: np.ndarray
    diverged: np.ndarray
    slices: np.ndarray
    slice_ends: np.ndarray

    def swapped(self) -> Surface:
        """The same with x and y exchanged."""
        turned = {name: getattr(self, name).swapaxes(1, 2) for name in ("losses", "slices")}
        return dataclasses.replace(self, x=self.y, y=self.x, ended=self.ended.T, diverged=self.diverged.T, **turned)

    def means(self) -> np.ndarray:
        """(Y, X) over seeds; NaN where a seed diverged or has not ended: a mean of the survivors would flatter."""
        return self.losses.mean(0)


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Loss against x of one variant at one size, at the best y for each x.

    Only points where every seed has ended are in it. Attributes as of `Surface`, without Y; ``losses`` (S, X) is NaN
    exactly where a run diverged. ``best_y``: (X,).
    """

    variant: str
    width: int
    depth: int
    parameters: int
    seeds: tuple[int, ...]
    x: np.ndarray
    losses: np.ndarray
    diverged: np.ndarray
    slices: np.ndarray
    slice_ends: np.ndarray
    best_y: np.ndarray

    def index(self, x: float) -> int | None:
        """The position of a grid value, if it was run."""
        found = np.flatnonzero(self.x == x)
        return int(found[0]) if len(found) else None


def profile(surface: Surface) -> Curve:
    """The curve of the lowest mean over y for each x; with one y that is the loss itself."""
    complete = surface.ended == len(surface.seeds)
    means = np.where(complete & (surface.diverged == 0), surface.means(), np.inf)
    means = np.where(complete & np.isinf(means), np.finfo(np.float64).max, means)  # diverged: after all others
    kept = np.flatnonzero(complete.any(0))
    best = means[:, kept].argmin(0)
    return Curve(
        **{name: getattr(surface, name) for name in ("variant", "width", "depth", "parameters", "seeds", "slice_ends")},
        x=surface.x[kept],
        losses=surface.losses[:, best, kept],
        diverged=surface.diverged[best, kept],
        slices=surface.slices[:, best, kept],
        best_y=surface.y[best],
    )


def roles(info: SweepInfo) -> Roles:
    """The part of each axis.

    Raises:
      InputError: x is no axis of numbers.
    """
    if info.x not in info.axes:
        raise InputError(f"the sweep's x is {info.x!r}, which is not one of its axes: use {', '.join(info.axes)}.")
    x = _scale(info, info.x)
    if x is None:
        raise InputError(f"the sweep's x, {info.x}, has the values {info.axes[info.x]!r}: an optimum needs numbers.")
    sizes = (*_SIZES, _STAGES) if _stages_are_depths(info) else _SIZES
    others = [a for a, values in info.axes.items() if len(values) > 1 and a not in (info.x, SEED, *sizes)]
    second = next((a for a in others if _is_direction(info, a)), None)
    return Roles(x, _scale(info, second) if second else None, tuple(a for a in others if a != second))


def surfaces(info: SweepInfo, records: Sequence[Record], parts: Roles) -> list[Surface]:
    """One per variant and size, variants in the grid's order, sizes ascending.

    Raises:
      InputError: a record has no value for an axis.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        for axis in info.axes.keys() - record.point.keys():
            raise InputError(
                f"run {record.run} has no value of the sweep's axis {axis}: delete its line and repeat it."
            )
        order = tuple(_position(info.axes[axis], record.point[axis]) for axis in parts.variants)
        groups.setdefault((order, record.width, record.depth), []).append(record)
    return [_surface(info, groups[key], parts) for key in sorted(groups)]


def variant_name(info: SweepInfo, axes: Sequence[str], point: dict[str, Any]) -> str:
    """``batch, alpha=0.5``: words by themselves unless they say little, everything else with its field's name."""
    words = [value for axis in axes for value in info.axes[axis] if isinstance(value, str)]
    names = []
    for axis in axes:
        value = point[axis]
        alone = isinstance(value, str) and words.count(value) == 1 and value not in ("", "none")
        names.append(value if alone else f"{short(axis)}={number(value)}")
    return ", ".join(names)


def short(axis: str) -> str:
    """A field without its section."""
    return axis.rpartition(".")[2]


def number(value: Any) -> str:
    """At most four digits of a float; other values as they are."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _surface(info: SweepInfo, records: Sequence[Record], parts: Roles) -> Surface:
    second = parts.second.axis if parts.second else None
    seeds = sorted({record.seed for record in records})
    x = sorted({float(record.point[parts.x.axis]) for record in records})
    y = sorted({float(record.point[second]) for record in records}) if second else [math.nan]
    first = records[0]
    slices = max(len(record.train_loss_slices) for record in records)
    arrays = {
        "losses": np.full((len(seeds), len(y), len(x)), np.nan),
        "slices": np.full((len(seeds), len(y), len(x), slices), np.nan),
        "ended": np.zeros((len(y), len(x)), int),
        "diverged": np.zeros((len(y), len(x)), int),
    }
    for record in records:
        column = x.index(float(record.point[parts.x.axis]))
        row = y.index(float(record.point[second])) if second else 0
        at = (seeds.index(record.seed), row, column)
        arrays["ended"][row, column] += 1
        arrays["slices"][at][: len(record.train_loss_slices)] = [_float(v) for v in record.train_loss_slices]
        loss = _float(record.train_loss_avg)
        if record.status == COMPLETED and math.isfinite(loss):
            arrays["losses"][at] = loss
        else:
            arrays["diverged"][row, column] += 1
    steps = max(record.steps for record in records)
    return Surface(
        variant=variant_name(info, parts.variants, first.point),
        width=first.width,
        depth=first.depth,
        parameters=first.parameters,
        seeds=tuple(seeds),
        x=np.array(x),
        y=np.array(y),
        slice_ends=np.minimum(first.slice_steps * np.arange(1, slices + 1), steps),
        **arrays,
    )


def _float(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else float(value)


def _stages_are_depths(info: SweepInfo) -> bool:
    """Whether blocks per stage are a way to set the depth, rather than shapes of networks of one depth."""
    totals = [sum(stages) for stages in info.axes.get(_STAGES, [])]
    return len(set(totals)) == len(totals)


def _position(values: list[Any], value: Any) -> int:
    return values.index(value) if value in values else len(values)


def _is_direction(info: SweepInfo, axis: str) -> bool:
    """Whether a second axis is one to optimize along; others make variants."""
    scale = _scale(info, axis)
    return scale is not None and len(scale.values) >= 3 and axis in CONTINUOUS


def _scale(info: SweepInfo, axis: str) -> Scale | None:
    values = info.axes[axis]
    if not values or any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in values):
        return None
    return Scale(axis, tuple(sorted({float(v) for v in values})))
