"""From recorded sizes to verdicts: the exponents that theory expects, and those that pass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

from depthmup_flax.check.layers import Layers
from depthmup_flax.check.records import (
    BRANCH_VECTORS,
    BRANCHES,
    EVERYTHING,
    LEAST_UPDATE,
    MOST_UPDATE,
    OTHER_VECTORS,
    OUTPUT,
    Table,
    Trend,
    fit_trend,
)
from depthmup_flax.rule.parametrization import WIDTH_RULES, Geometry, Parametrization, ParamInfo, Role
from depthmup_flax.util.power_fits import BELOW_PRECISION, EXPLODES, ZERO, Fit, fit_power

# Verdicts on an exponent, compared with the expected one.
FLAT, CONVERGES, GROWS, VANISHES, UNCLEAR = "flat", "converges", "grows", "vanishes", "unclear"
FINITE = "finite size"  # no mistake explains the exponent, which approaches the expected one
NO_ANSWER = (UNCLEAR, BELOW_PRECISION)
FEATURES = "features"  # all activations but the output, as one quantity
# Kinds of a weight, besides those of activations.
START, UPDATE, DECAY = "start", "update", "decay"


@dataclasses.dataclass(frozen=True)
class Quantity:
    """One judged exponent."""

    axis: str  # "width" or "depth"
    group: str  # the parameters that train
    kind: str  # "activation" (before training), "change" (after it), or one of a weight
    name: str  # of the activation or weight, or `FEATURES`
    step: int  # optimizer steps taken
    fit: Fit
    theory: float | None  # the exponent that theory gives for the rule in use, if it gives one
    verdict: str  # flat, converges, grows, vanishes (compared with `expected`), unclear, or the state of the fit
    passed: bool  # whether the verdict is acceptable for this quantity
    expected: float = 0.0  # the exponent of a right network
    trend: Trend | None = None


def judge(table: Table, rule: Parametrization, tolerance: float, layers: Layers) -> list[Quantity]:
    """All quantities: activations before training, changes when everything trains, changes by each group alone."""
    return [quantity for axis in table.axes() for quantity in _Judge(table, rule, tolerance, layers, axis).judge()]


def verdict_of(fit: Fit, tolerance: float, expected: float = 0.0, trend: Trend | None = None) -> str:
    """Flat if the interval touches the tolerance and stays within twice of it; grows or vanishes if it is outside both.

    Mistakes have exponents of 1/2 or more, so the interval of a flat one must end below 1/2; between once and twice the
    tolerance an exponent is unclear. An exponent that clearly moves to the expected one as networks grow converges if
    it is within the tolerance at the largest sizes, and is unclear otherwise.
    """
    if fit.state != "fitted":
        return fit.state
    deviation = abs(fit.slope - expected)
    least, most = deviation - fit.interval, deviation + fit.interval
    if least <= tolerance and most <= 2 * tolerance:
        return FLAT
    if trend is not None and trend.converges(expected, tolerance):
        return CONVERGES if trend.arrived(expected, tolerance) else UNCLEAR
    if least > tolerance and most > 2 * tolerance:
        return GROWS if fit.slope > expected else VANISHES
    return UNCLEAR


def settled(quantities: Sequence[Quantity], right_axes: Collection[str], tolerance: float) -> list[Quantity]:
    """The quantities; where code, initial values and updates are right, the size of the networks explains the rest."""
    differing = {(q.kind in ("activation", "change"), q.verdict in _OF_SIZE) for q in quantities if not q.passed}
    if differing != {(True, True)}:
        return [*quantities]
    return [_explained_by_size(q, tolerance) if q.axis in right_axes else q for q in quantities]


_OF_SIZE = (GROWS, VANISHES, UNCLEAR)


def _explained_by_size(q: Quantity, tolerance: float) -> Quantity:
    """The quantity of a right network: finite size if it approaches the expected exponent, or is unclear and below it.

    What else may be wrong, such as a mean that adds up, makes sizes grow, by exponents of 1/2.
    """
    if q.passed:
        return q
    slow = q.verdict == UNCLEAR and q.fit.slope < q.expected < q.fit.slope - q.fit.interval + 0.5
    finite = slow or (q.trend is not None and q.trend.approaches(q.expected, tolerance))
    return dataclasses.replace(q, verdict=FINITE if finite else UNCLEAR, passed=finite)


def expected_exponent(axis: str, kind: str, name: str, in_branch: bool | None, rule: Parametrization) -> float | None:
    """The exponent of theory, or ``None`` if it gives none; ``in_branch`` is ``None`` if everything trains.

    Depth (TP6 Claims 7.1, 7.2): with alpha >= 1/2 activations start flat, and L branches that each move by
    ``L^-(alpha + gamma)`` move the features by ``L^(1 - alpha - gamma)``. Width (TP6 Table 2): flat under muP. If
    gamma0 follows ``m^e``, features move as ``m^e`` and outputs as 1 (B24 C.1). Under ``standard``, the exponents
    depend on the optimizer.
    """
    if axis == "width":
        if rule.width != "mup":
            return 0.0 if kind == "activation" else None
        return float(rule.gamma0_width_exponent) if kind == "change" and name != OUTPUT else 0.0
    if rule.alpha < 0.5:
        return None
    if kind == "activation" or in_branch is False:
        return 0.0
    exponent = float(1 - rule.alpha - rule.gamma)
    return exponent if in_branch else max(exponent, 0.0)


def expected_update(axis: str, leaf: ParamInfo, rule: Parametrization) -> float:
    """The exponent of a weight's update, which follows ``n^-c L^-gamma`` (TP6 Definition 6.1)."""
    if axis == "depth":
        return -float(rule.update_gamma(leaf)) if leaf.in_branch else 0.0
    return float(WIDTH_RULES[Geometry.SIGN][leaf.role].update_in) if rule.width == "mup" else 0.0


def expected_start(axis: str, leaf: ParamInfo, rule: Parametrization) -> float | None:
    """The exponent of a weight's standard deviation before training; ``None`` if only activations are judged.

    Width (TP6 Table 2): hidden weights start with ``n^-1/2``, input and output weights flat. Depth: flat, as the branch
    multiplier is the only factor.
    """
    if axis == "depth":
        return 0.0 if leaf.in_branch else None
    if rule.width != "mup" or (leaf.role is not Role.HIDDEN and leaf.in_branch):
        return None
    return -0.5 if leaf.role is Role.HIDDEN else 0.0


_NONE = Fit(math.nan, math.nan, ZERO)


def _any_above(least: float, values: Mapping[int, Sequence[float]]) -> bool:
    return any(value > least for seeds in values.values() for value in seeds)


@dataclasses.dataclass(frozen=True)
class _Judge:
    """`judge` over one axis."""

    table: Table
    rule: Parametrization
    tolerance: float
    layers: Layers
    axis: str

    def judge(self) -> list[Quantity]:
        quantities = [self.initial(name) for name in self.table.features(self.axis)]
        for name in self.table.features(self.axis):
            # Inside a branch, only its own weights may move an activation, in steps of r^-gamma: for example queries
            # that start at zero.
            inside = self.axis == "depth" and name in self.layers.branch_activations
            quantities += self.changes(EVERYTHING, name, None, slowest=-float(self.rule.gamma) if inside else 0.0)
        if not any((q.kind, q.name) == ("change", OUTPUT) for q in quantities):
            # `changes` skips zeros: without this, a network in which nothing trains would pass.
            last = self.table.steps(self.axis, EVERYTHING, "change")[-1]
            quantities.append(Quantity(self.axis, EVERYTHING, "change", OUTPUT, last, _NONE, 0.0, ZERO, passed=False))
        for path in self.layers.weights:
            quantities += [*self.start(path), *self.update(path), *self.decay(path)]
        quantities += [q for path in self.layers.vectors if self.has_gradient(path) for q in self.update(path)]
        for group in self.table.groups(self.axis)[1:]:
            in_branch = group in self.layers.branch_groups
            expected = 0.0
            if self.axis == "depth" and group in self.layers.once_groups:
                expected = -float(self.rule.alpha + self.rule.gamma)  # one layer among L
            slowest = -math.inf if self.may_vanish(group) else expected
            # The changes of L layers by their gates add up as L^1/2, as they hardly point in one direction; along the
            # slope of the loss they add up as L.
            of_stream = float(0.5 - self.rule.alpha - self.rule.gamma) if self.is_gate(group) else 0.0
            quantities += self.changes(group, FEATURES, in_branch, min(slowest, of_stream), expected)
            quantities += self.changes(group, OUTPUT, in_branch, slowest, expected)
        return quantities

    def may_vanish(self, group: str) -> bool:
        """Whether theory lets the effect of a group that trains alone shrink through a random readout.

        Over width it falls as n^-1/2 if a gradient is a product of two independent vectors of length n: of a query and
        a key, or of the slope of the loss and the input of a gate or of an adapter of fixed rank. The effects of
        adapters are then random, so those of L layers add up to L^(1/2) only. Vectors are not judged alone.
        """
        if group in (BRANCH_VECTORS, OTHER_VECTORS):
            return True
        weights = self.layers.weights_of(group).values()
        is_adapter = bool(weights) and all(leaf.to_few_features for leaf in weights)
        return is_adapter or (self.axis == "width" and self.is_gate(group))

    def is_gate(self, group: str) -> bool:
        """Whether a group weighs the outputs of others: queries, keys, and gates such as routers."""
        weights = self.layers.weights_of(group).values()
        gates = bool(weights) and all(leaf.in_branch and leaf.role is Role.OUTPUT for leaf in weights)
        return gates or group in self.layers.score_groups

    def quantity(
        self,
        group: str,
        kind: str,
        name: str,
        step: int,
        values: Mapping[int, Sequence[float]],
        theory: float | None,
        expected: float = 0.0,
    ) -> Quantity:
        """A quantity that passes if it follows the expected exponent."""
        fit, trend = fit_power(values) if values else _NONE, fit_trend(values)
        verdict = verdict_of(fit, self.tolerance, expected, trend)
        passed = verdict in (FLAT, CONVERGES)
        return Quantity(self.axis, group, kind, name, step, fit, theory, verdict, passed, expected, trend)

    def initial(self, name: str) -> Quantity:
        """An activation before training: flat. Zeros (queries, a readout) pass, and so do outputs that shrink."""
        values = self.table.values(self.axis, EVERYTHING, "activation", name, 0)
        theory = expected_exponent(self.axis, "activation", name, None, self.rule)
        q = self.quantity(EVERYTHING, "activation", name, 0, values, theory)
        shrinks = name == OUTPUT and (q.verdict == VANISHES or (q.verdict == UNCLEAR and q.fit.slope < 0))
        return dataclasses.replace(q, passed=q.passed or q.verdict == ZERO or shrinks)

    def start(self, path: str) -> list[Quantity]:
        """The size of a weight before training: zeros pass, and over width hidden and output weights that are small."""
        leaf = self.layers.weights[path]
        expected = expected_start(self.axis, leaf, self.rule)
        values = self.table.values(self.axis, EVERYTHING, "weight", path, 0)
        if expected is None or not _any_above(0, values):
            return []
        q = self.quantity(EVERYTHING, START, path, 0, values, expected, expected)
        falls = self.axis == "depth" or leaf.role is Role.INPUT
        wrong = q.verdict in (VANISHES if falls else GROWS, UNCLEAR)
        if leaf.role is Role.OUTPUT and not wrong:
            return []  # most readouts fall: the line would look like a failure
        return [dataclasses.replace(q, passed=not wrong)]

    def has_gradient(self, path: str) -> bool:
        """Whether a vector's gradient exceeds rounding; that of a bias of keys, or in front of a norm, does not."""
        group = self.table.run_of(self.axis, self.layers.group(path))
        of = lambda name: [v for s in self.table.values(self.axis, group, "gradient", name, 0).values() for v in s]
        others = [value for name in self.layers.vectors for value in of(name)]
        return bool(of(path)) and min(of(path)) > 1e-3 * max(others)

    def update(self, path: str) -> list[Quantity]:
        """The first nonzero update without decay, alone if possible: before a zero product there is none."""
        if self.axis == "width" and path in self.layers.matrix_updates:
            return []
        group, leaf = self.layers.group(path), self.layers.leaf(path)
        alone = self.table.run_of(self.axis, group)
        expected = expected_update(self.axis, leaf, self.rule)
        for trained in (alone, BRANCHES, EVERYTHING):
            for step in self.table.steps(self.axis, trained, "gradient_update"):
                values = self.table.values(self.axis, trained, "gradient_update", path, step)
                if _any_above(0, values):
                    q = self._worst_layer(self.quantity(trained, UPDATE, path, step, values, expected, expected))
                    # The updates of SGD follow a gradient that falls as n^-1/2 or, before a product that started at
                    # zero, as L^-gamma.
                    slow = q.verdict in (VANISHES, UNCLEAR) and q.fit.slope >= expected - 0.5 - self.tolerance
                    excused = slow and (trained != alone or self.may_vanish(group))
                    return [dataclasses.replace(q, passed=q.passed or excused)]
        return []

    def _worst_layer(self, q: Quantity) -> Quantity:
        """``q``, the update of several layers, or the largest or smallest of one layer, if that is wrong."""
        for quantity in (LEAST_UPDATE, MOST_UPDATE) if q.passed else ():
            values = self.table.values(self.axis, q.group, quantity, q.name, q.step)
            if values and all(v > 0 for seeds in values.values() for v in seeds):
                one = self.quantity(q.group, UPDATE, q.name, q.step, values, q.theory, q.expected)
                if one.verdict in (GROWS, VANISHES):
                    return one
        return q

    def decay(self, path: str) -> list[Quantity]:
        """The share of a weight that decay removes in a step: flat (B24 App. L)."""
        group = self.table.run_of(self.axis, self.layers.group_of_weight[path])
        values = self.table.values(self.axis, group, "decay", path, 0)
        return [self.quantity(group, DECAY, path, 1, values, 0.0)] if _any_above(1e-12, values) else []

    def changes(
        self, group: str, name: str, in_branch: bool | None, slowest: float, expected: float = 0.0
    ) -> list[Quantity]:
        """The worse of the changes after the first nonzero step and after the last.

        A change must not grow faster than ``expected``, nor vanish with an exponent below ``slowest``. If seeds scatter
        so much that one of the two is unclear, the other decides: with a readout at zero, the first step of all
        parameters is that of the readout.
        """
        theory = expected or expected_exponent(self.axis, "change", name, in_branch, self.rule)
        quantities = []
        for step in self.table.steps(self.axis, group, "change"):
            q = self.quantity(group, "change", name, step, self._change(group, name, step), theory, expected)
            if q.verdict == ZERO:
                continue
            shrinks = q.verdict in (VANISHES, UNCLEAR) and slowest < 0 and slowest - self.tolerance <= q.fit.slope
            quantities.append(
                dataclasses.replace(q, passed=q.passed or (shrinks and q.fit.slope < expected + 2 * self.tolerance))
            )
        badness = lambda q: (not q.passed, abs(q.fit.slope - expected) if q.fit.state == "fitted" else math.inf)
        scatters = lambda q: q.verdict == UNCLEAR and q.fit.interval > self.tolerance
        ends = [quantities[0], quantities[-1]] if quantities else []
        decided = [q for q in ends if not scatters(q)]
        return [max(decided or ends, key=badness)] if ends else []

    def features(self, group: str) -> list[str]:
        """The activations in which the effect of a group is judged: over depth, those of the stream.

        Inside a branch, that branch's own weights, which move by ``L^-gamma``, may cause a change.
        """
        names = [name for name in self.table.features(self.axis) if name != OUTPUT]
        if self.axis == "width" or group not in self.layers.branch_groups:
            return names
        inside = self.layers.branch_activations
        blocks = min((name.count("/") for name in names if name in inside), default=0)
        names = [name for name in names if name not in inside or name.count("/") == blocks]
        return [name for name in names if not f"{name}/".startswith(f"{group}/")] or names

    def _change(self, group: str, name: str, step: int) -> Mapping[int, Sequence[float]]:
        """The size of a change; of the outputs, unless it grows, only the part along the slope of the loss.

        Through a random readout, the change of the outputs has a part that falls as n^-1/2 in right networks: for every
        class, the product of the change of the features and random weights.
        """
        if name == FEATURES:
            return self.table.feature_changes(self.axis, group, step, self.features(group))
        whole = self.table.values(self.axis, group, "change", name, step)
        start = self.table.values(self.axis, group, "activation", name, 0)
        from_zero = group == EVERYTHING and fit_power(start).state == ZERO
        if name != OUTPUT or from_zero or verdict_of(fit_power(whole), self.tolerance) in (GROWS, EXPLODES):
            return whole
        return self.table.values(self.axis, group, "aligned", name, step)
