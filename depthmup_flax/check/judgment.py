"""From recorded sizes to verdicts: a size over the rule's must be the same at all widths and depths."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable

from depthmup_flax.check.layers import Layers
from depthmup_flax.check.records import (
    ACTIVATION,
    CHANGE,
    DECAY,
    EFFECT,
    GRADIENT,
    LEAST_UPDATE,
    MOST_UPDATE,
    START,
    UPDATE,
    Table,
    Values,
)
from depthmup_flax.rule.parametrization import Parametrization, Role
from depthmup_flax.util.power_fits import BELOW_PRECISION, ZERO, Fit, fit_power

# Verdicts on an exponent, besides the states of a fit.
FLAT, GROWS, VANISHES, UNCLEAR = "flat", "grows", "vanishes", "unclear"
FINITE = "finite size"  # of a gradient whose code is right
NO_ANSWER = (UNCLEAR, BELOW_PRECISION)
ALL_PARAMETERS = "all parameters"
LEAST_MISTAKE = 0.5  # a wrong power of width or depth: m^1/2, r^1/2 or more
_ROUNDING = 1e-3  # of the largest gradient of vectors: that of a bias of keys, or in front of a norm, is rounding
_LEAST_DECAY = 1e-12


@dataclasses.dataclass(frozen=True)
class Quantity:
    """One judged exponent: of a size over the rule's own, which is 0 in a right network."""

    axis: str  # "width" or "depth"
    kind: str  # a quantity of `Record`; the extremes of updates are "update"
    name: str  # of the activation or parameter
    step: int  # of training, 0 before it
    fit: Fit
    verdict: str  # flat, grows, vanishes, unclear, finite size, or the state of the fit
    passed: bool  # whether the verdict is acceptable for this quantity


def judge(
    table: Table,
    rule: Parametrization,
    tolerance: float,
    layers: Layers,
    right: Collection[str],
    open_: Collection[str],
) -> list[Quantity]:
    """All quantities of all axes.

    Args:
      table: the records.
      rule, tolerance, layers: of the check.
      right: the axes over which the audit has read the code, whole and without a finding.
      open_: the axes over which activations are judged, too.
    """
    found: list[Quantity] = []
    for axis in table.axes():
        judge_axis = _Judge(table, rule, tolerance, layers, axis, axis in right)
        found += judge_axis.of_parameters()
        if axis in open_:
            found += judge_axis.of_activations()
    return found


def verdict_of(fit: Fit, tolerance: float) -> str:
    """Flat if the interval touches the tolerance and stays within twice of it; grows or vanishes if it is outside both.

    Mistakes have exponents of 1/2 or more, so the interval of a flat one must end below 1/2; between once and twice the
    tolerance an exponent is unclear.
    """
    if fit.state != "fitted":
        return fit.state
    least, most = abs(fit.slope) - fit.interval, abs(fit.slope) + fit.interval
    if least <= tolerance and most <= 2 * tolerance:
        return FLAT
    if least > tolerance and most > 2 * tolerance:
        return GROWS if fit.slope > 0 else VANISHES
    return UNCLEAR


def is_small(fit: Fit, tolerance: float) -> bool:
    """Whether an exponent may be that of right networks, by its interval, or is no mistake's."""
    deviation = abs(fit.slope)
    return deviation - fit.interval <= tolerance or deviation + fit.interval < LEAST_MISTAKE


def any_above(least: float, values: Values) -> bool:
    """Whether any seed's value at any size is above, or not a number."""
    return any(not value <= least for seeds in values.values() for value in seeds)


@dataclasses.dataclass(frozen=True)
class _Judge:
    """`judge` over one axis."""

    table: Table
    rule: Parametrization
    tolerance: float
    layers: Layers
    axis: str
    code_is_right: bool

    def of_parameters(self) -> list[Quantity]:
        """Initial values, gradients, updates, effects and decay."""
        starts = self._each(self.layers.weights, self.start)
        updates = self._each(self.layers.leaves, self.update) + self._each(self.layers.weights, self.effect)
        if not updates:
            zero = Fit(math.nan, math.nan, ZERO)
            updates = [Quantity(self.axis, UPDATE, ALL_PARAMETERS, 1, zero, ZERO, passed=False)]
        decays = self._each(self.layers.weights, self.decay)
        gradients = self._each(self.layers.weights, self.gradient)
        if self.code_is_right and all(q.passed for q in (*starts, *updates, *decays)):
            gradients = [self._explained_by_size(q) for q in gradients]
        return [*starts, *gradients, *updates, *decays]

    def of_activations(self) -> list[Quantity]:
        """Where the code is not judged: neither activations nor their changes may grow.

        They scatter more than gradients, so one whose interval reaches the tolerance is no failure.
        """
        names = [n for n in self.table.names(self.axis, ACTIVATION) if n not in self.layers.readout_activations]
        quantities = []
        for name, kind in ((name, kind) for kind in (ACTIVATION, CHANGE) for name in names):
            if one := self._worst(kind, name):
                shrinks = one.verdict in (VANISHES, UNCLEAR) and one.fit.slope < 0
                scatters = one.verdict == UNCLEAR and one.fit.slope - one.fit.interval <= self.tolerance
                one = dataclasses.replace(one, verdict=VANISHES) if shrinks else one
                quantities.append(dataclasses.replace(one, passed=one.passed or shrinks or scatters))
        return quantities

    def start(self, path: str) -> Quantity | None:
        """The size of initial values: zeros pass, and readouts, gates and bottlenecks may be smaller."""
        leaf = self.layers.weights[path]
        if self.axis == "width" and self.rule.width != "mup":  # left to the initializer
            return None
        one = self._quantity(START, path, 0)
        may_shrink = leaf.role is Role.OUTPUT or self.layers.is_gate(path)
        shrinks = may_shrink and self.axis == "width" and one.verdict == VANISHES
        if one.verdict == ZERO or shrinks:  # as most readouts do: the line would look like a failure
            return None
        return one

    def gradient(self, path: str) -> Quantity | None:
        """The size of the first gradient, which is right if all factors of the code are."""
        if not any_above(0, self.table.values(self.axis, GRADIENT, path, 1)):
            return None  # in front of a product that starts at zero
        one = self._quantity(GRADIENT, path, 1)
        return dataclasses.replace(one, verdict=VANISHES, passed=True) if self._may_fall(path, one) else one

    def _explained_by_size(self, one: Quantity) -> Quantity:
        """A gradient where all else is right: of small networks; an exponent of a mistake's size is unclear."""
        if one.passed or one.verdict not in (GROWS, VANISHES, UNCLEAR):
            return one
        small = is_small(one.fit, self.tolerance)
        return dataclasses.replace(one, verdict=FINITE if small else UNCLEAR, passed=small)

    def update(self, path: str) -> Quantity | None:
        """The size of the updates without decay, or of the most deviating layer's."""
        if path in self.layers.matrix_updates or (path in self.layers.vectors and not self._has_gradient(path)):
            return None
        one = self._worst(UPDATE, path)
        if one is None:
            return None
        if one.passed:
            of_layers = [self._worst(kind, path) for kind in (LEAST_UPDATE, MOST_UPDATE)]
            wrong = [q for q in of_layers if q and q.verdict in (GROWS, VANISHES)]
            return dataclasses.replace(wrong[0], kind=UPDATE) if wrong else one
        # The updates of SGD are as many times the gradient, which scatters and is judged itself.
        relative = self._over_gradient(one)
        if relative.passed:
            return relative
        excused = path in self.layers.weights and self._may_fall(path, one)
        return dataclasses.replace(one, verdict=VANISHES, passed=True) if excused else one

    def effect(self, path: str) -> Quantity | None:
        """The effect of updates that are not entrywise, which may fall as a gradient does."""
        one = self._worst(EFFECT, path)
        if one is None or one.passed or not self._may_fall(path, one):
            return one
        return dataclasses.replace(one, verdict=VANISHES, passed=True)

    def decay(self, path: str) -> Quantity | None:
        """The share of a weight that decay removes in a step: flat (B24 App. L)."""
        values = self.table.values(self.axis, DECAY, path, 1)
        return self._quantity(DECAY, path, 1) if any_above(_LEAST_DECAY, values) else None

    def _each(self, paths: Iterable[str], *kinds: Callable[[str], Quantity | None]) -> list[Quantity]:
        found = [kind(path) for kind in kinds for path in paths]
        return [q for q in found if q is not None]

    def _over_gradient(self, update: Quantity) -> Quantity:
        """The update over the gradient of the same step and seed, each over the rule's."""
        updates, gradients = (
            self.table.values(self.axis, kind, update.name, update.step) for kind in (UPDATE, GRADIENT)
        )
        ratios = {
            size: [u / g if g else math.nan for u, g in zip(updates[size], gradients[size], strict=True)]
            for size in updates
        }
        return self._judged(UPDATE, update.name, update.step, ratios)

    def _may_fall(self, path: str, one: Quantity) -> bool:
        """Whether theory lets a gradient fall: over width as n^-1/2 that of a gate, or after a product of zero."""
        starts_late = not any_above(0, self.table.values(self.axis, one.kind, path, 1))
        gate = self.axis == "width" and self.layers.is_gate(path)
        falls = one.verdict in (VANISHES, UNCLEAR) and 0 > one.fit.slope >= -LEAST_MISTAKE - self.tolerance
        return falls and (gate or starts_late)

    def _has_gradient(self, path: str) -> bool:
        """Whether a vector's gradient exceeds rounding."""
        of = lambda name: [v for seeds in self.table.values(self.axis, GRADIENT, name, 1).values() for v in seeds]
        largest = max((value for name in self.layers.vectors for value in of(name)), default=0.0)
        return bool(of(path)) and min(of(path)) > _ROUNDING * largest

    def _worst(self, kind: str, name: str) -> Quantity | None:
        """Of the first step at which a size is not zero and of the last, the quantity that deviates more."""
        steps = self.table.steps(self.axis, kind, name)
        steps = [step for step in steps if any_above(0, self.table.values(self.axis, kind, name, step))]
        if not steps:
            return None
        ends = [self._quantity(kind, name, step) for step in dict.fromkeys((steps[0], steps[-1]))]
        return max(ends, key=_badness)

    def _quantity(self, kind: str, name: str, step: int) -> Quantity:
        return self._judged(kind, name, step, self.table.values(self.axis, kind, name, step))

    def _judged(self, kind: str, name: str, step: int, values: Values) -> Quantity:
        """A quantity that passes if it is flat."""
        fit = fit_power(values)
        verdict = verdict_of(fit, self.tolerance)
        return Quantity(self.axis, kind, name, step, fit, verdict, verdict == FLAT)


def _badness(q: Quantity) -> tuple[bool, float]:
    return not q.passed, abs(q.fit.slope) if q.fit.state == "fitted" else math.inf
