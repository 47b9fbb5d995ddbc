"""From fitted exponents to verdicts: what theory expects, and what passes."""

from __future__ import annotations

import dataclasses
import math

from depthmup_flax.coord_check.layer_names import Layers
from depthmup_flax.coord_check.recorded_sizes import BRANCHES, EVERYTHING, OTHER_VECTORS, OUTPUT, SCORES, Table
from depthmup_flax.power_fits import BELOW_PRECISION, HUGE, ZERO, Fit, fit_power
from depthmup_flax.rule.parametrization import Parametrization

FLAT, GROWS, VANISHES, UNCLEAR = "flat", "grows", "vanishes", "unclear"
NO_ANSWER = (UNCLEAR, BELOW_PRECISION)
FEATURES = "features"  # all activations but the output, as one quantity
ATTENTION_SCALE = "attention scale"


@dataclasses.dataclass(frozen=True)
class Quantity:
    """One judged exponent."""

    axis: str  # "width" or "depth"
    group: str  # the parameters that train
    kind: str  # "activation" (before training), "change" (after it), or `ATTENTION_SCALE`
    name: str  # of the activation, or `FEATURES`
    step: int  # optimizer steps taken
    fit: Fit
    theory: float | None  # the exponent that theory gives for the rule in use, if it gives one
    verdict: str  # flat, grows, vanishes, unclear, or the state of the fit
    passed: bool  # whether the verdict is acceptable for this quantity


def judge(table: Table, rule: Parametrization, tolerance: float, layers: Layers) -> list[Quantity]:
    """All quantities: activations before training, changes when everything trains, and changes by each group alone."""
    return [quantity for axis in table.axes() for quantity in _Judge(table, rule, tolerance, layers, axis).judge()]


def expected_exponent(axis: str, kind: str, name: str, in_branch: bool | None, rule: Parametrization) -> float | None:
    """The exponent that theory gives for a rule, if it gives one; ``in_branch`` is ``None`` if everything trains.

    Depth (TP6 Claims 7.1, 7.2): with alpha >= 1/2 activations start flat, and L branches that each move by
    ``L^-(alpha + gamma)`` move the features by ``L^(1 - alpha - gamma)``. Width (TP6 Table 2): flat under muP. If
    gamma0 follows ``m^e``, features move as ``m^e`` and outputs as 1 (B24 C.1). Under ``standard``, growing exponents
    depend on the optimizer, so there is no single number.
    """
    if axis == "width":
        if rule.width != "mup":
            return 0.0 if kind == "activation" else None
        return rule.gamma0_width_exponent if kind == "change" and name != OUTPUT else 0.0
    if rule.alpha < 0.5:
        return None
    if kind == "activation" or in_branch is False:
        return 0.0
    exponent = 1 - rule.alpha - rule.gamma
    return exponent if in_branch else max(exponent, 0.0)


def verdict_of(fit: Fit, tolerance: float) -> str:
    """Grows or vanishes if the interval lies outside the tolerance; flat if it stays within twice the tolerance.

    Mistakes have exponents of 1/2 or more, so a flat interval must not reach 1/2.
    """
    if fit.state != "fitted":
        return fit.state
    if abs(fit.slope) - fit.interval > tolerance:
        return GROWS if fit.slope > 0 else VANISHES
    return FLAT if abs(fit.slope) + fit.interval <= 2 * tolerance else UNCLEAR


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
            # An activation inside a branch may be moved by its own weights only, in steps of r^-gamma: queries that
            # start at zero are.
            inside = self.axis == "depth" and name in self.layers.branch_activations
            quantities += self.changes(EVERYTHING, name, None, slowest=-self.rule.gamma if inside else 0.0)
        if not any((q.kind, q.name) == ("change", OUTPUT) for q in quantities):
            # Changes of zero are not judged: without this, a network in which nothing trains would pass.
            last = self.table.steps(self.axis, EVERYTHING, "change")[-1]
            fit = Fit(math.nan, math.nan, ZERO)
            quantities.append(Quantity(self.axis, EVERYTHING, "change", OUTPUT, last, fit, 0.0, ZERO, passed=False))
        for group in self.table.groups(self.axis)[1:]:
            in_branch = group in self.layers.branch_groups
            # The effect of one layer among many may vanish, and so may that of queries before keys align with them.
            may_vanish = group != BRANCHES and (in_branch or group == OTHER_VECTORS)
            for name in (FEATURES, OUTPUT):
                quantities += self.changes(group, name, in_branch, slowest=-math.inf if may_vanish else 0.0)
        return quantities + (self.attention_scales() if self.axis == "width" else [])

    def initial(self, name: str) -> Quantity:
        """An activation before training: flat. Zero (queries, a readout) passes; so does a readout that shrinks."""
        fit = self.table.fit(self.axis, EVERYTHING, "activation", name, 0)
        verdict = verdict_of(fit, self.tolerance)
        passed = verdict in (FLAT, ZERO) or (name == OUTPUT and verdict == VANISHES)
        theory = expected_exponent(self.axis, "activation", name, None, self.rule)
        return Quantity(self.axis, EVERYTHING, "activation", name, 0, fit, theory, verdict, passed)

    def changes(self, group: str, name: str, in_branch: bool | None, slowest: float) -> list[Quantity]:
        """The worse of the changes after the first nonzero step and after the last.

        It must not grow, nor vanish with an exponent below ``slowest``.
        """
        quantities = []
        for step in self.table.steps(self.axis, group, "change"):
            if name == FEATURES:
                fit = self.table.fit_features(self.axis, group, step)
            else:
                fit = self.table.fit(self.axis, group, "change", name, step)
            if fit.state == ZERO:
                continue
            verdict = verdict_of(fit, self.tolerance)
            shrinks = verdict in (VANISHES, UNCLEAR) and slowest < 0 and slowest - self.tolerance <= fit.slope
            passed = verdict == FLAT or (shrinks and fit.slope < 2 * self.tolerance)
            theory = expected_exponent(self.axis, "change", name, in_branch, self.rule)
            quantities.append(Quantity(self.axis, group, "change", name, step, fit, theory, verdict, passed))
        badness = lambda q: (not q.passed, abs(q.fit.slope) if q.fit.state == "fitted" else math.inf)
        return [max((quantities[0], quantities[-1]), key=badness)] if quantities else []

    def attention_scales(self) -> list[Quantity]:
        """The ratio of the changes of attention's output and of its scores: the attention scale times d, so flat.

        d is the head dimension; queries train alone. Scores are averages over d, before the scale; the output comes
        after it. The ratio does not depend on the alignment of queries and keys, which settles only at head dimensions
        above the number of tokens. ``1/sqrt(d)``, which ``standard`` uses, shows as +1/2.
        """
        quantities = []
        for name in self.table.names(self.axis, EVERYTHING, "activation"):
            parent, _, last = name.rpartition("/")
            groups = (g.rpartition("/") for g in sorted(self.layers.branch_groups))
            queries = [f"{above}/{own}" for above, _, own in groups if above == parent and "q" in own]
            if last != SCORES or not queries:
                continue
            changes = [self.table.values(self.axis, queries[0], "change", n, 1) for n in (name, parent)]
            if not all(changes) or any(not 0 < v < HUGE for by in changes for seeds in by.values() for v in seeds):
                continue
            scores, outputs = changes
            fit = fit_power({s: [o / c for o, c in zip(outputs[s], scores[s], strict=True)] for s in scores})
            verdict, theory = verdict_of(fit, self.tolerance), 0.5 if self.rule.width != "mup" else 0.0
            fields = (self.axis, queries[0], ATTENTION_SCALE, parent, 1, fit, theory, verdict)
            quantities.append(Quantity(*fields, passed=verdict == FLAT))
        return quantities
