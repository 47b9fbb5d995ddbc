"""The numbers that claims compare: measured in an analysis, with intervals, and with what limits them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from depthmup_flax.report import optimum as opt
from depthmup_flax.report.curves import Curve
from depthmup_flax.report.optimum import Estimate
from depthmup_flax.report.transfer import DIVERGED, UNTRAINED, Analysis, Row, Variant, exploded
from reproduction.claims.figures import power_laws
from reproduction.claims.valleys import valley_angle

AT_MOST, AT_LEAST, EITHER = "at most", "at least", "either"
BASE, LARGEST = "base", "largest"
BOTH = "width and depth"  # an axis: both are the same multiple of the base's
Window = tuple[float, float]  # part of training, as fractions of its steps
REGRETS = ("regret", "regret of the early choice")
NOT_NEGATIVE = (*REGRETS, "cost of an octave")
_OF_STABLE = "exponent of the largest stable rate"
OVER_SIZES = ("exponent", "absolute exponent", _OF_STABLE, f"absolute {_OF_STABLE}")
_OPPOSITE = {AT_MOST: AT_LEAST, AT_LEAST: AT_MOST}


@dataclasses.dataclass(frozen=True)
class Term:
    """One number of one variant.

    Attributes:
      measure: a key of `MEASURES`.
      variant: the parts of its name that identify it, as in ``batch, mup``; empty for a sweep's only variant.
      axis: along which sizes vary: depth, width or `BOTH`.
      at: `BASE` or `LARGEST`.
      when: the part of training whose mean loss counts; by default the loss that the sweep reports.
    """

    measure: str
    variant: str = ""
    axis: str = "depth"
    at: str = LARGEST
    when: Window | None = None


@dataclasses.dataclass(frozen=True)
class Measured:
    """A number and what limits it.

    Attributes:
      estimate: ``None`` if nothing is known; infinite if the network does not train.
      limit: `AT_LEAST` or `AT_MOST` if the estimate bounds the number on one side only, whatever its interval;
        `EITHER` if it bounds neither; `UNTRAINED` if it is infinite as the network does not train; empty if the
        interval holds.
      note: why it is limited, unknown or infinite.
    """

    estimate: Estimate | None
    limit: str = ""
    note: str = ""

    def __neg__(self) -> Measured:
        """The negative number."""
        negative = None if self.estimate is None else -self.estimate
        return Measured(negative, _OPPOSITE.get(self.limit, self.limit), self.note)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a term is measured: at the base, or at ``multiple`` times its size (NaN: no larger size was run)."""

    analysis: Analysis
    variant: Variant
    term: Term
    multiple: float = math.nan

    @functools.cached_property
    def rows(self) -> dict[float, Row]:
        """Multiple of the base's size along the axis -> row."""
        axis, base = self.term.axis, self.variant.base.curve
        if axis == BOTH:
            multiples = ((row, row.curve.width / base.width, row.curve.depth / base.depth) for row in self.variant.rows)
            return {depth: row for row, width, depth in multiples if width == depth}
        line = self.analysis.along(axis)
        return {row.curve.size(axis) / base.size(axis): row for row in (line.rows(self.variant.rows) if line else ())}

    @property
    def row(self) -> Row:
        """The variant's results there."""
        return self.variant.base if self.term.at == BASE else self.rows[self.multiple]

    @property
    def x(self) -> str:
        """The name of the hyperparameter."""
        return self.analysis.scale.name

    @property
    def name(self) -> str:
        """The variant, for sentences."""
        return self.variant.name or "the network"

    @property
    def of(self) -> str:
        """`` of mup``; empty for a sweep's only variant."""
        return f" of {self.variant.name}" if self.variant.name else ""

    @property
    def what(self) -> str:
        """The measure, the variant and the time, in words."""
        when = self.term.when
        window = f" between {100 * when[0]:g} and {100 * when[1]:g} % of training" if when else ""
        return f"{self.term.measure}{self.of}{window}"

    @property
    def where(self) -> str:
        """The sizes, in words."""
        if self.term.measure in OVER_PARAMETERS:
            return "at equal numbers of parameters"
        if self.term.measure in OVER_SIZES:
            axis, sizes = self.term.axis, sorted({row.curve.size(self.term.axis) for row in self.compared})
            return f"over {axis} {sizes[0]} to {sizes[-1]}" if sizes else ""
        return "" if self.term.at == LARGEST and math.isnan(self.multiple) else f"at {self.size(self.row)}"

    def size(self, row: Row) -> str:
        """The row's size along the axis, in words."""
        names = ("width", "depth") if self.term.axis == BOTH else (self.term.axis,)
        return " and ".join(f"{name} {row.curve.size(name)}" for name in names)

    @property
    def compared(self) -> list[Row]:
        """The rows that the measure takes."""
        return list(self.rows.values()) if self.term.measure in (*OVER_SIZES, *OVER_PARAMETERS) else [self.row]

    def coordinates(self, curve: Curve) -> np.ndarray:
        """(X,)."""
        return np.asarray(self.analysis.scale.coordinate(curve.x))

    @property
    def chosen_on(self) -> Curve:
        """The curve whose best x has a regret of `REGRETS`: the base's, or one that is made at the same size, early."""
        if self.term.when is None:
            return self.variant.base.curve
        return dataclasses.replace(self.row.curve, losses=self.losses(self.row.curve))

    def losses(self, curve: Curve) -> np.ndarray:
        """(S, X): as reported, or the mean over the time slices that overlap ``when``."""
        if self.term.when is None:
            return curve.losses
        ends = curve.slice_ends / curve.slice_ends[-1]
        starts = np.concatenate([[0.0], ends[:-1]])
        inside = (ends > self.term.when[0]) & (starts < self.term.when[1])
        return np.asarray(curve.slices[..., inside].mean(-1))


def lowest(coordinates: np.ndarray, losses: np.ndarray, most: float) -> Estimate:
    """The minimum of the fitted curve, see `minima`; losses are (S, X), NaN for diverged runs."""
    belongs = opt.belonging(coordinates, losses, most)
    resampled = opt.minima(coordinates, opt.resampled_means(losses), belongs) if len(losses) > 1 else None
    return Estimate(float(opt.minima(coordinates, losses.mean(0), belongs)), resampled, len(losses))


def _no_seed_trains(place: Place, row: Row) -> bool:
    """Whether each seed's lowest loss is above twice that before learning."""
    lowest = np.where(np.isfinite(row.curve.losses), row.curve.losses, np.inf).min(1)
    return bool((lowest > exploded(place.variant.initial_loss)).all())


def _fails(place: Place, row: Row, how: str) -> Measured:
    note = f"{place.name} {how} at {place.size(row)}"
    limit = UNTRAINED if how == UNTRAINED else ""
    return Measured(Estimate(math.inf, None, len(row.curve.seeds)), limit, note)


def _edge(place: Place, row: Row) -> str:
    """Says that the optimum lies at an edge of the grid; empty if it does not."""
    return f"the best {place.x} of {place.name} at {place.size(row)} is the {row.edge}" if row.edge else ""


def _regret(place: Place) -> Measured:
    """What the base's best x costs, as in the tables."""
    row, base = place.row, place.variant.base
    if base.edge:
        return Measured(None, note=_edge(place, base))
    if row.optimum is None or (row.regret == UNTRAINED and _no_seed_trains(place, row)):
        return _fails(place, row, UNTRAINED)
    if row.regret == DIVERGED:
        return _fails(place, row, f"diverges with the base's best {place.x}")
    if not isinstance(row.regret, Estimate):
        return Measured(None, note=f"the base's best {place.x} of {place.name}: {row.regret} at this size")
    edge = _edge(place, row)
    return Measured(row.regret, AT_LEAST if edge else "", edge)


def _loss(place: Place) -> Measured:
    """The minimum of the fitted curve."""
    row = place.row
    if row.optimum is None or _no_seed_trains(place, row):
        return _fails(place, row, UNTRAINED)
    coordinates, losses = place.coordinates(row.curve), place.losses(row.curve)
    best = opt.find_optimum(coordinates, losses, most=place.variant.most)
    if best is None:
        return _fails(place, row, "diverges")
    edge = best.flag in opt.EDGES
    note = f"the best {place.x} of {place.name} is at the edge of the grid" if edge else ""
    return Measured(lowest(coordinates, losses, place.variant.most), AT_MOST if edge else "", note)


def _exponent(place: Place) -> Measured:
    """Of the best x over all sizes of the axis, each of which must have its optimum inside the grid."""
    optima = {}
    for row in place.rows.values():
        size = row.curve.size(place.term.axis)
        coordinates, losses = place.coordinates(row.curve), place.losses(row.curve)
        best = opt.find_optimum(coordinates, losses, most=place.variant.most)
        if best is None or not row.trains or best.flag in (*opt.EDGES, opt.ONE_VALUE):
            note = f"no best {place.x} of {place.name} inside the grid at {place.size(row)}"
            return Measured(None, note=note)
        optima[math.log2(size)] = best.at
    slope = opt.slope(list(optima), list(optima.values()))
    return Measured(slope, note="" if slope else "an exponent takes three sizes")


def _exponent_of_stable(place: Place) -> Measured:
    """Of the largest stable x over all sizes of the axis."""
    stable, initial_loss = {}, place.variant.initial_loss
    for row in place.rows.values():
        coordinates, losses = place.coordinates(row.curve), place.losses(row.curve)
        value = float(_largest_stable(coordinates, losses.mean(0), initial_loss))
        if math.isnan(value):
            return Measured(None, note=f"no {place.x} of {place.name} at {place.size(row)} is too large")
        draws = _largest_stable(coordinates, opt.resampled_means(losses), initial_loss) if len(losses) > 1 else None
        known = None if draws is None or np.isnan(draws).any() else draws
        stable[math.log2(row.curve.size(place.term.axis))] = Estimate(value, known, len(losses))
    slope = opt.slope(list(stable), list(stable.values()))
    return Measured(slope, note="" if slope else "an exponent takes three sizes")


def _largest_stable(coordinates: np.ndarray, losses: np.ndarray, initial_loss: float) -> np.ndarray:
    """(X,), (..., X) -> (...): where, above the minimum, half of what is learned there is lost.

    Linear between points, where a loss above the `exploded` one, or a diverged one, is that. NaN if it is lost nowhere.
    """
    most = exploded(initial_loss)
    capped = np.where(np.isfinite(losses), np.minimum(losses, most), most)
    limit = (capped.min(-1, keepdims=True) + initial_loss) / 2
    lost = (capped > limit) & (np.arange(len(coordinates)) > capped.argmin(-1)[..., None])
    first = np.maximum(lost.argmax(-1), 1)[..., None]
    below, above = (np.take_along_axis(capped, index, -1) for index in (first - 1, first))
    with np.errstate(all="ignore"):
        at = coordinates[first - 1] + (limit - below) / (above - below) * (coordinates[first] - coordinates[first - 1])
    return np.where(lost.any(-1), at[..., 0], np.nan)


def _without_sign(measure: Callable[[Place], Measured], place: Place) -> Measured:
    """All draws get the value's sign, since folding them would hide noise around 0."""
    measured = measure(place)
    return -measured if measured.estimate is not None and measured.estimate.value < 0 else measured


def _early_choice(place: Place) -> Measured:
    """What the x that is best early in training costs at the end, at the same size."""
    row, coordinates, most = place.row, place.coordinates(place.row.curve), place.variant.most
    early = opt.find_optimum(coordinates, place.losses(row.curve), most=most)
    regret = opt.regret(coordinates, row.curve.losses, early, most=most) if early else None
    if early is None or regret is None:
        return _fails(place, row, f"diverges with the early best {place.x}")
    if early.flag in opt.EDGES:
        return Measured(regret, EITHER, f"the early best {place.x} is the {early.flag}")
    edge = _edge(place, row)
    return Measured(regret, AT_LEAST if edge else "", edge)


def _cost_of_an_octave(place: Place) -> Measured:
    """What half or twice of the best x costs, whichever costs more."""
    row = place.row
    if row.optimum is None or not row.bracketed:
        return Measured(None, note=f"no best {place.x} inside the grid")
    coordinates, at = place.coordinates(row.curve), row.optimum.at
    if not coordinates[0] + 1 <= at.value <= coordinates[-1] - 1:
        return Measured(None, note=f"the grid ends within an octave of the best {place.x}")
    moved = [
        Estimate(at.value + step, None if at.draws is None else at.draws + step, at.seeds, at.resolution)
        for step in (-1.0, 1.0)
    ]
    optima = [dataclasses.replace(row.optimum, at=one) for one in moved]
    costs = [opt.regret(coordinates, row.curve.losses, one, most=place.variant.most) for one in optima]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return _fails(place, row, f"diverges within an octave of the best {place.x}")
    return Measured(max(known, key=lambda cost: cost.value))


def _power_of_parameters(place: Place) -> Measured:
    """Exponent of the lowest loss in the number of parameters, at the base's depth."""
    law = power_laws(place.variant.rows)["depth"].get(place.variant.base.curve.depth)
    return Measured(-law) if law else Measured(None, note="a power takes three widths")


def _loss_at_depth(pick: Callable[[Sequence[int]], int], place: Place) -> Measured:
    """The loss at one of the depths, in the middle of the numbers of parameters that all depths have.

    Between widths it is linear in the logarithm of the number of parameters.
    """
    lines: dict[int, list[tuple[float, Estimate]]] = {}
    for row in sorted(place.variant.rows, key=lambda row: row.curve.parameters):
        if row.trains:
            loss = lowest(place.coordinates(row.curve), row.curve.losses, place.variant.most)
            lines.setdefault(row.curve.depth, []).append((math.log(row.curve.parameters), loss))
    lines = {depth: line for depth, line in lines.items() if len(line) > 1}
    low = max((line[0][0] for line in lines.values()), default=math.inf)
    high = min((line[-1][0] for line in lines.values()), default=-math.inf)
    if low > high or len(lines) < 3:
        return Measured(None, note="this takes three depths with equal numbers of parameters")
    positions, losses = zip(*lines[pick(sorted(lines))], strict=True)
    weights = [float(np.interp((low + high) / 2, positions, unit)) for unit in np.eye(len(positions))]
    return Measured(opt.weighted_sum(weights, losses))


def _next_to_12(depths: Sequence[int]) -> int:
    return min(depths[1:-1], key=lambda depth: abs(math.log(depth / 12)))


def _angle(place: Place) -> Measured:
    """Of the optimal sublevel set over both hyperparameters, in degrees: -45 for a slope of -1."""
    row, other = place.row, place.analysis.other
    if other is None:
        return Measured(None, note="this takes two hyperparameters")
    at = (place.variant.name, *row.size)
    (surface,) = (s for s in place.analysis.surfaces if (s.variant, s.width, s.depth) == at)
    u, v = place.analysis.scale.coordinate(surface.x), other.coordinate(surface.y)
    angle = valley_angle(u, v, surface.losses)
    if angle is None:
        return Measured(None, note=f"the best region has no direction {place.where}")
    note = "" if angle.draws is not None else f"no interval: a resampled region has no direction {place.where}"
    return Measured(opt.weighted_sum([math.degrees(1.0)], [angle]), note=note)


_PICKS: Mapping[str, Callable[[Sequence[int]], int]] = {
    "loss at the depth next to 12": _next_to_12,
    "loss at the smallest depth": min,
    "loss at the largest depth": max,
}
OVER_PARAMETERS = tuple(_PICKS)
MEASURES: Mapping[str, Callable[[Place], Measured]] = {
    "regret": _regret,
    "lowest loss": _loss,
    "exponent": _exponent,
    "absolute exponent": functools.partial(_without_sign, _exponent),
    _OF_STABLE: _exponent_of_stable,
    f"absolute {_OF_STABLE}": functools.partial(_without_sign, _exponent_of_stable),
    "regret of the early choice": _early_choice,
    "cost of an octave": _cost_of_an_octave,
    "power of the number of parameters": _power_of_parameters,
    **{measure: functools.partial(_loss_at_depth, pick) for measure, pick in _PICKS.items()},
    "angle of the best region": _angle,
}
