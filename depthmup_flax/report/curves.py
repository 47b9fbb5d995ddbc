"""A sweep's records as arrays: the role of each axis, and the loss surface and curve of each variant and size.

Letters in shapes: S seeds, Y values of the second continuous axis (1 without one), X values of x, T time slices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from depthmup_flax.report.optimum import filled
from depthmup_flax.storage.sweep_records import (
    COMPLETED,
    OWN,
    SEED,
    TEST,
    TRAIN,
    VALIDATION,
    Record,
    SweepInfo,
    is_continuous,
)
from depthmup_flax.util.errors import InputError, printable
from depthmup_flax.util.types import Json

EVALUATED = {VALIDATION: "on held-out training examples", TEST: "on the test set"}  # where it is measured
LOSSES = {TRAIN: "training loss", VALIDATION: "validation loss", TEST: "test loss"}  # names for sentences
_WORDS = {**{f"b{k}": f"decay rate beta{k}" for k in (1, 2, 3)}, "eps": "epsilon", "lr": "learning-rate"}
OCTAVES = "octaves"  # the unit of coordinates that are log2
_LARGEST = 1e100  # a loss above it, or not finite, counts as diverged


@dataclasses.dataclass(frozen=True)
class Scale:
    """A numeric axis. Its coordinate is log2 of the value if all values are positive, else the value."""

    axis: str  # dotted config field
    values: tuple[float, ...]  # ascending

    @property
    def name(self) -> str:
        """For labels: ``learning rate``."""
        return axis_name(self.axis)

    @property
    def log(self) -> bool:
        """Whether the coordinate is log2."""
        return min(self.values) > 0

    @property
    def unit(self) -> str:
        """The unit of coordinate differences."""
        return OCTAVES if self.log else f"units of {self.name}"

    def coordinate(self, values: Any) -> Any:
        """Number or array of values -> coordinates."""
        return np.log2(values) if self.log else np.asarray(values, np.float64)

    def value(self, coordinate: float) -> float:
        """The inverse of `coordinate`."""
        return 2.0**coordinate if self.log else float(coordinate)


@dataclasses.dataclass(frozen=True, eq=False)
class Losses:
    """Losses of one variant at one size."""

    variant: str  # short name, empty if the sweep has only one
    width: int
    depth: int
    parameters: int
    seeds: tuple[int, ...]  # (S,) seeds of all runs here
    slice_ends: np.ndarray  # (T,) last step of each time slice
    x: np.ndarray  # (X,) axis values
    # (S, Y, X) mean training loss at the end, or an evaluation's; NaN if the run diverged or has not ended
    losses: np.ndarray
    diverged: np.ndarray  # (Y, X) number of runs
    slices: np.ndarray  # (S, Y, X, T) mean training loss of each time slice; NaN as above

    def size(self, name: str) -> int:
        """Its ``width`` or ``depth``."""
        return self.width if name == "width" else self.depth


@dataclasses.dataclass(frozen=True, eq=False)
class Surface(Losses):
    """Losses over x and y."""

    point: Json  # of one of its runs: dotted config field -> value
    y: np.ndarray  # (Y,)
    ended: np.ndarray  # (Y, X), number of runs


@dataclasses.dataclass(frozen=True, eq=False)
class Curve(Losses):
    """Losses over x alone, at the best y for each x, at the points where every seed has ended."""

    best_y: np.ndarray  # (X,)
    incomplete: bool  # a point of the surface has runs of some seeds only; points without runs may not be planned


def profile(surface: Surface) -> Curve:
    """The curve of the lowest mean over y for each x; with one y that is the loss itself."""
    complete = surface.ended == len(surface.seeds)
    # NaN if any seed diverged or has not ended, since survivors would bias the mean.
    means = np.where(complete & (surface.diverged == 0), surface.losses.mean(0), np.inf)
    means = np.where(complete & np.isinf(means), np.finfo(np.float64).max, means)  # diverged points rank last
    columns = np.flatnonzero(complete.any(0))
    best = means[:, columns].argmin(0)
    fields = {field.name: getattr(surface, field.name) for field in dataclasses.fields(Losses)}
    fields |= {name: getattr(surface, name)[:, best, columns] for name in ("losses", "slices")}
    fields |= {"x": surface.x[columns], "diverged": surface.diverged[best, columns]}
    incomplete = bool(((surface.ended > 0) & ~complete).any())
    return Curve(**fields, best_y=surface.y[best], incomplete=incomplete)


def roles(info: SweepInfo) -> tuple[Scale, Scale | None, tuple[str, ...]]:
    """x, which must be numeric; the second continuous axis, if any; and the axes that are compared side by side."""
    if info.x not in info.axes:
        raise InputError(f"the sweep's x is {info.x!r}, which is not one of its axes: use {', '.join(info.axes)}.")
    x = _scale(info, info.x)
    if x is None:
        raise InputError(f"the sweep's x, {info.x}, has the values {info.axes[info.x]!r}: an optimum needs numbers.")
    # Blocks per stage are an axis of depth, unless two values have the same depth.
    depths = [sum(stages) for stages in info.axes.get("model.stage_sizes", [])]
    fixed = {info.x, SEED, "model.width", "model.depth"}
    fixed |= {"model.stage_sizes"} if len(set(depths)) == len(depths) else set()
    others = [axis for axis, values in info.axes.items() if len(values) > 1 and axis not in fixed]
    continuous = (scale for a in others if is_continuous(a) and (scale := _scale(info, a)) and len(scale.values) >= 3)
    second = next(continuous, None)
    return x, second, tuple(a for a in others if second is None or a != second.axis)


def surfaces(info: SweepInfo, records: Sequence[Record], loss: str = TRAIN) -> list[Surface]:
    """One surface of a loss of `LOSSES` per variant and size, variants in the grid's order, sizes ascending."""
    variants = roles(info)[2]
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        order = tuple([info.axes[axis].index(record.point[axis]) for axis in variants])
        groups.setdefault((order, record.width, record.depth), []).append(record)
    return [_surface(info, groups[key], loss) for key in sorted(groups)]


def _variant_name(info: SweepInfo, axes: Sequence[str], point: Json) -> str:
    """``batch, alpha=0.5``: values with the names of their fields; an unambiguous word needs none."""
    words = [value for axis in axes for value in info.axes[axis] if isinstance(value, str)]
    names = []
    for axis in axes:
        value = point[axis]
        alone = isinstance(value, str) and words.count(value) == 1 and value not in ("", "none")
        names.append(value if alone else f"{axis.rpartition('.')[2]}={number(value)}")
    return ", ".join(names)


def axis_name(field: str) -> str:
    """A config field for labels and after "the": ``learning rate`` of ``optimizer.learning_rate``."""
    words = field.rpartition(".")[2].split("_")
    return printable(" ".join(_WORDS.get(word, word) for word in words))


def number(value: Any) -> str:
    """A float with at most four digits; other values unchanged."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _surface(info: SweepInfo, records: Sequence[Record], loss: str) -> Surface:
    x_scale, second, variants = roles(info)
    value = lambda record, scale: float(record.point[scale.axis]) if scale else 0.0
    seeds = sorted({record.seed for record in records})
    x = sorted({value(record, x_scale) for record in records})
    y = sorted({value(record, second) for record in records})
    places = [{value: place for place, value in enumerate(values)} for values in (seeds, y, x)]
    first, shape = records[0], (len(seeds), len(y), len(x))
    count = max(len(record.train_loss_slices) for record in records)
    losses, slices, ended = np.full(shape, np.nan), np.full((*shape, count), np.nan), np.zeros(shape[1:], int)
    present = np.zeros(shape, bool)
    for record in records:
        coordinates = (record.seed, value(record, second), value(record, x_scale))
        at = tuple([place[coordinate] for place, coordinate in zip(places, coordinates, strict=True)])
        ended[at[1:]] += 1
        present[at] = True
        slices[at][: len(record.train_loss_slices)] = record.train_loss_slices  # None becomes NaN
        if record.status == COMPLETED:
            losses[at] = record.loss(loss)  # None becomes NaN
    # Sums of larger numbers overflow; they exceed every float32.
    losses[np.abs(losses) > _LARGEST] = slices[np.abs(slices) > _LARGEST] = np.nan
    diverged = ended - np.isfinite(losses).sum(0)
    if info.scale == OWN:  # a sweep is run on until no run is missing
        at_point = lambda array: array.reshape(len(seeds), -1)
        losses = filled(at_point(losses), at_point(present)).reshape(shape)
        first_losses = filled(at_point(slices[..., 0]), at_point(present)).reshape(shape)
        slices, ended = first_losses[..., None], np.where(ended > 0, len(seeds), 0)
    return Surface(
        variant=_variant_name(info, variants, first.point),
        width=first.width,
        depth=first.depth,
        parameters=first.parameters,
        seeds=tuple(seeds),
        slice_ends=np.minimum(first.slice_steps * np.arange(1, count + 1), max(record.steps for record in records)),
        x=np.array(x),
        losses=losses,
        diverged=diverged,
        slices=slices,
        point=first.point,
        y=np.array(y),
        ended=ended,
    )


def _scale(info: SweepInfo, axis: str) -> Scale | None:
    values = info.axes[axis]
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) and abs(v) < _LARGEST for v in values)
    if not values or not numbers:
        return None
    return Scale(axis, tuple(sorted({float(v) for v in values})))
