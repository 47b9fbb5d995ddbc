"""From records to fitted exponents, and from exponents to verdicts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from depthmup_flax.coord_check.measure import BRANCHES, EVERYTHING, OTHER_VECTORS, OUTPUT, Record
from depthmup_flax.coord_check.networks import SCORES
from depthmup_flax.power_fits import BELOW_PRECISION, EXPLODES, HUGE, ZERO, Fit, fit_power
from depthmup_flax.rule.parametrization import Parametrization

FLAT, GROWS, VANISHES, UNCLEAR = "flat", "grows", "vanishes", "unclear"
NO_ANSWER = (UNCLEAR, BELOW_PRECISION)
FEATURES = "features"  # all activations but the output, as one quantity
ATTENTION_SCALE = "attention scale"


@dataclasses.dataclass(frozen=True)
class Quantity:
    """One judged number: how something's size follows width or depth.

    Attributes:
      axis: ``width`` or ``depth``.
      group: which parameters train.
      kind: ``activation`` (before training), ``change`` (after it), or `ATTENTION_SCALE`.
      name: of the activation; `FEATURES` stands for all but the output.
      step: optimizer steps taken.
      fit: the exponent.
      theory: the exponent that theory gives for the rule in use; ``None`` if it gives none.
      verdict: flat, grows, vanishes, zero, explodes, below precision or unclear.
      passed: whether that is as it must be.
    """

    axis: str
    group: str
    kind: str
    name: str
    step: int
    fit: Fit
    theory: float | None
    verdict: str
    passed: bool


class Table:
    """Records by what they measure, with fits."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._values: dict[tuple[str, str, str, str, int], dict[int, list[float]]] = {}
        for r in records:
            by_size = self._values.setdefault((r.axis, r.group, r.quantity, r.name, r.step), {})
            by_size.setdefault(r.size, []).append(r.value)
        self._activations = {axis: self._distinct_activations(axis) for axis in self.axes()}

    def activations(self, axis: str) -> list[str]:
        """Activations at every size, without those that only pass another one on (a block and its stream, say)."""
        return self._activations[axis]

    def _distinct_activations(self, axis: str) -> list[str]:
        steps = self.steps(axis, EVERYTHING, "activation")
        seen: dict[str, str] = {}
        names = self.names(axis, EVERYTHING, "activation")
        for name in sorted(names, key=lambda n: (n != OUTPUT, n.count("/"), names.index(n))):
            numbers = [self.values(axis, EVERYTHING, "activation", name, step) for step in steps]
            seen.setdefault(repr(numbers), name)
        return [name for name in names if name in seen.values()]

    def axes(self) -> list[str]:
        """The axes that were varied, width first."""
        return sorted({key[0] for key in self._values}, reverse=True)

    def sizes(self, axis: str) -> list[int]:
        """What was tried along an axis."""
        return sorted({size for key, by_size in self._values.items() if key[0] == axis for size in by_size})

    def groups(self, axis: str) -> list[str]:
        """`EVERYTHING` first, then the joint branches, then the others by name."""
        order = {EVERYTHING: 0, BRANCHES: 1}
        return sorted({key[1] for key in self._values if key[0] == axis}, key=lambda g: (order.get(g, 2), g))

    def names(self, axis: str, group: str, quantity: str) -> list[str]:
        """What has records of this kind at every size."""
        count = len(self.sizes(axis))
        return list(
            dict.fromkeys(k[3] for k, v in self._values.items() if k[:3] == (axis, group, quantity) and len(v) == count)
        )

    def steps(self, axis: str, group: str, quantity: str) -> list[int]:
        """Steps that were recorded."""
        return sorted({key[4] for key in self._values if key[:3] == (axis, group, quantity)})

    def values(self, axis: str, group: str, quantity: str, name: str, step: int) -> dict[int, list[float]]:
        """Size -> a value per seed."""
        return self._values.get((axis, group, quantity, name, step), {})

    def fit(self, axis: str, group: str, quantity: str, name: str, step: int) -> Fit:
        """The exponent of one name."""
        return fit_power(self.values(axis, group, quantity, name, step))

    def fit_features(self, axis: str, group: str, step: int) -> Fit:
        """The exponent of the features' change.

        Over width that is the geometric mean of all activations that change. Over depth it is the one that changes most
        in the deepest network: the stream. Inside a branch a change may come from that branch's own weights, which
        move by ``L^-gamma``.
        """
        logs: dict[str, dict[int, list[float]]] = {}
        for name in self.activations(axis):
            by_size = self.values(axis, group, "change", name, step)
            flat = [v for values in by_size.values() for v in values]
            if name == OUTPUT or name.rpartition("/")[2] == SCORES or not by_size or min(flat) == 0:
                continue
            if not all(math.isfinite(v) and v < HUGE for v in flat):
                return Fit(math.nan, math.nan, EXPLODES)
            logs[name] = {size: [math.log(v) for v in values] for size, values in by_size.items()}
        if not logs:
            return Fit(math.nan, math.nan, ZERO)
        if axis == "depth":
            largest = self.sizes(axis)[-1]
            name = max(logs, key=lambda n: float(np.mean(logs[n][largest])))
            return self.fit(axis, group, "change", name, step)
        first = next(iter(logs.values()))
        seeds = range(len(next(iter(first.values()))))
        return fit_power({s: [math.exp(np.mean([log[s][i] for log in logs.values()])) for i in seeds] for s in first})


def expected_exponent(axis: str, kind: str, name: str, in_branch: bool | None, rule: Parametrization) -> float | None:
    """What theory says of a rule's exponent, as far as it says something; ``in_branch`` is ``None`` for everything.

    Depth (TP6 Claims 7.1, 7.2): with alpha >= 1/2 activations start flat, and L branches that each move by
    ``L^-(alpha + gamma)`` move the features by ``L^(1 - alpha - gamma)``. Width (TP6 Table 2): flat under muP; under a
    gamma0 that follows ``m^e``, features move as ``m^e`` and outputs as 1 (B24 C.1). ``standard`` has growing exponents
    that depend on the optimizer, and no single number; its attention logits are too large by ``d^(1/2)``.
    """
    standard = rule.width != "mup"
    if kind == ATTENTION_SCALE:
        return 0.5 if standard else 0.0
    if axis == "width":
        if standard:
            return 0.0 if kind == "activation" else None
        return rule.gamma0_width_exponent if kind == "change" and name != OUTPUT else 0.0
    if rule.alpha < 0.5:
        return None
    if kind == "activation" or in_branch is False:
        return 0.0
    exponent = 1 - rule.alpha - rule.gamma
    return exponent if in_branch else max(exponent, 0.0)


def judge(
    table: Table, rule: Parametrization, tolerance: float, in_branch: set[str], branch_activations: set[str]
) -> list[Quantity]:
    """Every quantity of a check: activations before training, changes when everything trains, and each group alone.

    Args:
      table: of all records.
      rule: the parametrization in use.
      tolerance: largest exponent that counts as flat.
      in_branch: groups inside residual branches.
      branch_activations: of modules with parameters inside residual branches.
    """
    found = []
    for axis in table.axes():
        names = [name for name in table.activations(axis) if name.rpartition("/")[2] != SCORES]
        found += [_initial(table, rule, tolerance, axis, name) for name in names]
        for name in names:
            # Inside a branch, its own weights' steps of r^-gamma may be what moves an activation; queries, which start
            # at zero, are moved by nothing else.
            slowest = -rule.gamma if axis == "depth" and name in branch_activations else 0.0
            found += _changes(table, rule, tolerance, axis, EVERYTHING, name, None, slowest)
        if not any((q.axis, q.kind, q.name) == (axis, "change", OUTPUT) for q in found):
            # What does not move is not judged, so a network in which nothing trains would pass.
            last = table.steps(axis, EVERYTHING, "change")[-1]
            still = Fit(math.nan, math.nan, ZERO)
            found.append(Quantity(axis, EVERYTHING, "change", OUTPUT, last, still, 0.0, ZERO, passed=False))
        for group in table.groups(axis)[1:]:
            # Of one layer among many, and of attention's queries before anything is aligned with them, the effect may
            # vanish; growing it may not.
            may_vanish = group != BRANCHES and (group in in_branch or group == OTHER_VECTORS)
            slowest = -math.inf if may_vanish else 0.0
            for name in (FEATURES, OUTPUT):
                found += _changes(table, rule, tolerance, axis, group, name, group in in_branch, slowest)
        if axis == "width":
            found += _attention_scales(table, rule, tolerance, in_branch)
    return found


def _initial(table: Table, rule: Parametrization, tolerance: float, axis: str, name: str) -> Quantity:
    """Before training: flat; zero (queries, a readout) is fine, and a random readout's output may shrink."""
    fit = table.fit(axis, EVERYTHING, "activation", name, 0)
    verdict = verdict_of(fit, tolerance)
    passed = verdict in (FLAT, ZERO) or (name == OUTPUT and verdict == VANISHES)
    theory = expected_exponent(axis, "activation", name, None, rule)
    return Quantity(axis, EVERYTHING, "activation", name, 0, fit, theory, verdict, passed)


def _changes(
    table: Table,
    rule: Parametrization,
    tolerance: float,
    axis: str,
    group: str,
    name: str,
    in_branch: bool | None,
    slowest: float,
) -> list[Quantity]:
    """The change after the first step that has one, and after the last: the worse of the two.

    It must not grow, nor vanish with an exponent below ``slowest``.
    """
    found = []
    for step in table.steps(axis, group, "change"):
        if name == FEATURES:
            fit = table.fit_features(axis, group, step)
        else:
            fit = table.fit(axis, group, "change", name, step)
        if fit.state == ZERO:
            continue
        verdict = verdict_of(fit, tolerance)
        shrinks = verdict in (VANISHES, UNCLEAR) and slowest < 0 and slowest - tolerance <= fit.slope
        passed = verdict == FLAT or (shrinks and fit.slope < 2 * tolerance)
        theory = expected_exponent(axis, "change", name, in_branch, rule)
        found.append(Quantity(axis, group, "change", name, step, fit, theory, verdict, passed))
    if not found:
        return []
    ends = [found[0], found[-1]]
    return [max(ends, key=lambda q: (not q.passed, abs(q.fit.slope) if q.fit.state == "fitted" else math.inf))]


def _attention_scales(table: Table, rule: Parametrization, tolerance: float, in_branch: set[str]) -> list[Quantity]:
    """By how much attention's output follows its scores: the attention scale times the head dimension d, so flat.

    With queries trained alone, the change of the scores (a mean over d, before the scale) and that of the attention's
    output (behind it) are both recorded. Their ratio is the scale times d whatever the alignment of queries and keys,
    which only settles at head dimensions above the number of tokens. ``1/sqrt(d)`` shows as +1/2.
    """
    found = []
    for name in table.names("width", EVERYTHING, "activation"):
        parent, _, last = name.rpartition("/")
        queries = [g for g in in_branch if g.rpartition("/")[0] == parent and "q" in g.rpartition("/")[2]]
        if last != SCORES or not queries:
            continue
        scores, outputs = (table.values("width", queries[0], "change", n, 1) for n in (name, parent))
        if not outputs or any(not 0 < v < HUGE for by in (scores, outputs) for values in by.values() for v in values):
            continue
        fit = fit_power({size: [o / s for o, s in zip(outputs[size], scores[size], strict=True)] for size in scores})
        verdict = verdict_of(fit, tolerance)
        theory = expected_exponent("width", ATTENTION_SCALE, name, True, rule)
        found.append(
            Quantity("width", queries[0], ATTENTION_SCALE, parent, 1, fit, theory, verdict, passed=verdict == FLAT)
        )
    return found


def verdict_of(fit: Fit, tolerance: float) -> str:
    """Grows or vanishes if the interval lies wholly outside the tolerance; flat if it stays within twice that.

    Mistakes have exponents of 1/2 or more, so a flat interval must not reach there.
    """
    if fit.state != "fitted":
        return fit.state
    if abs(fit.slope) - fit.interval > tolerance:
        return GROWS if fit.slope > 0 else VANISHES
    return FLAT if abs(fit.slope) + fit.interval <= 2 * tolerance else UNCLEAR
