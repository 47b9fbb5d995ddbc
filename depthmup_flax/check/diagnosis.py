"""From wrong exponents to the likely cause and the layers at fault."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from depthmup_flax.check.audited import Reading
from depthmup_flax.check.causes import Cause, least_gamma, named
from depthmup_flax.check.judgment import (
    ATTENTION_SCALE,
    DECAY,
    FEATURES,
    GROWS,
    START,
    UNCLEAR,
    UPDATE,
    VANISHES,
    Quantity,
    without_cause,
)
from depthmup_flax.check.layer_names import Layers
from depthmup_flax.check.notes import random_to_few_features, what_to_run
from depthmup_flax.check.probe import Probe
from depthmup_flax.check.recorded_sizes import BRANCHES, EVERYTHING, OTHER_VECTORS, OUTPUT, Table
from depthmup_flax.rule.parametrization import WIDTH_RULES, Geometry, Parametrization, Role
from depthmup_flax.util.power_fits import BELOW_PRECISION, EXPLODES, HUGE, ZERO

_CLEARLY = 0.25  # half of 1/2, the smallest difference between the exponents of two causes

# Mistakes in the forward pass or in `in_branch`, which an audit of the code over an axis also sees.
_FORWARD = {
    **dict.fromkeys(
        ("missing_branch_multiplier", "norm_cancels_multiplier", "shortcut_in_branch", "in_branch_incomplete"), "depth"
    ),
    **dict.fromkeys(
        ("readout_not_scaled", "readout_scaled_twice", "embedding_scaled_with_width", "attention_scale", "wrong_role"),
        "width",
    ),
}
_Mistake = tuple[str, Sequence[str]]  # a key of `TEXTS`, and the layers that show it; none: not this mistake


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What a diagnosis is based on."""

    table: Table
    quantities: Sequence[Quantity]
    rule: Parametrization
    layers: Layers
    tolerance: float
    probe: Probe
    readings: Mapping[str, Reading | None]  # of each axis

    @property
    def failing(self) -> list[Quantity]:
        """The quantities that did not pass."""
        return [q for q in self.quantities if not q.passed]

    def failed(self, axis: str, kind: str, group: str | None = None, name: str | None = None) -> list[Quantity]:
        """Quantities that grow or explode, or that are unclear but above the tolerance."""
        above = lambda q: q.verdict == UNCLEAR and q.fit.slope - q.fit.interval > q.expected + self.tolerance
        return [
            q
            for q in self.quantities
            if (q.axis, q.kind) == (axis, kind)
            and (q.verdict in (GROWS, EXPLODES) or above(q))
            and group in (None, q.group)
            and name in (None, q.name)
        ]

    def failures(self, axis: str, kind: str, verdict: str) -> list[str]:
        """Names of the quantities that did not pass, with this verdict."""
        return [
            q.name for q in self.quantities if (q.axis, q.kind, q.verdict) == (axis, kind, verdict) and not q.passed
        ]

    def weights(self, role: Role) -> list[str]:
        """Paths of the weights of a role."""
        return [path for path, leaf in self.layers.weights.items() if leaf.role is role]

    @functools.cached_property
    def branch_weights_before_norms(self) -> list[str]:
        """Weights inside branches that a norm follows."""
        return self.probe.before_norms([path for path, leaf in self.layers.weights.items() if leaf.in_branch])

    def updates(self, axis: str, verdict: str) -> list[str]:
        """Weights whose own update is wrong.

        A wrong update that follows a wrong gradient, as that of SGD does, is left out: it is a mistake of the forward
        pass.
        """
        return [
            q.name
            for q in self.quantities
            if (q.axis, q.kind, q.verdict) == (axis, UPDATE, verdict)
            and not q.passed
            and abs(q.fit.slope - q.expected - self.gradient_excess(axis, q.name)) > _CLEARLY
            and BELOW_PRECISION not in self.verdicts(axis, q.group)
        ]

    def gradient_excess(self, axis: str, path: str) -> float:
        """Exponent of a weight's gradient through a random readout, less that of the rule; 0 if it is unknown.

        The rule's gradient scale times the gradient is of order one (TP6 Definition 6.1).
        """
        leaf, rule = self.layers.leaf(path), self.rule
        expected = 0.0
        if axis == "depth":
            expected = -float(rule.alpha) if leaf.in_branch else 0.0
        elif rule.width == "mup":
            exponents = WIDTH_RULES[Geometry.LINEAR][leaf.role]
            expected = -float(exponents.gradient_in + exponents.gradient_out)
        run = self.table.run_of(axis, self.layers.group(path))
        fit = self.table.fit(axis, run, "gradient", path, 0)
        return fit.slope - expected if fit.state == "fitted" and math.isfinite(fit.slope) else 0.0

    def verdicts(self, axis: str, group: str) -> tuple[str, str]:
        """The verdicts on the changes of features and outputs when one group trains alone; "" if not judged."""
        verdict = {q.name: q.verdict for q in self.quantities if (q.axis, q.kind, q.group) == (axis, "change", group)}
        return verdict.get(FEATURES, ""), verdict.get(OUTPUT, "")

    def groups(self, role: Role) -> list[str]:
        """Groups of the weights of a role outside branches, with right updates over width."""
        wrong = {*self.updates("width", GROWS), *self.updates("width", VANISHES)}
        paths = [path for path in self.weights(role) if not self.layers.weights[path].in_branch and path not in wrong]
        return [self.layers.group_of_weight[path] for path in paths]

    @functools.cached_property
    def wrong_roles(self) -> list[str]:
        """Weights whose growing dimensions contradict their role."""
        wrong = []
        for path, shapes in self.layers.shapes_over_width.items():
            leaf, shape = self.layers.weights[path], shapes[-1]
            growing = sum(a != b for a, b in zip(shapes[0], shape, strict=True)) if len(shapes[0]) == len(shape) else 0
            if growing and not leaf.to_few_features and (growing >= 2) != (leaf.role is Role.HIDDEN):
                wrong.append(path)
        return wrong

    def growing_groups(self, axis: str) -> list[str]:
        """Groups that move features or outputs more, the larger the network."""
        return sorted({q.group for q in self.failed(axis, "change") if q.group not in (EVERYTHING, BRANCHES)})

    def groups_growing_outputs(self, axis: str, role: Role) -> list[str]:
        """Groups with weights of a role that move the outputs more, the larger the network."""
        with_role = {self.layers.group_of_weight[path] for path in self.weights(role)}
        return [g for g in self.growing_groups(axis) if g in with_role and self.failed(axis, "change", g, OUTPUT)]

    def mean_takes_over(self, name: str) -> bool:
        """Whether an activation's mean over features dominates it in the deepest network, more than in shallow ones."""
        sizes = self.table.sizes("depth")
        means, totals = (self.table.values("depth", EVERYTHING, kind, name, 0) for kind in ("mean", "activation"))
        if len(means) < len(sizes):
            return False
        shallow, deep = (sum(means[size]) / max(sum(totals[size]), 1e-30) for size in (sizes[0], sizes[-1]))
        return deep > max(0.7, 1.03 * shallow)


def diagnose(evidence: Evidence) -> tuple[list[Quantity], list[Cause]]:
    """The quantities, and the causes that the evidence supports, the most basic first; a failed check has at least one.

    Findings of the audit are causes even where the sizes tried do not show them. A cause in the forward pass is not
    named if the code excludes it. If the code is right and there is no cause, what differs is the size of the networks.
    """
    e = evidence
    if any((q.kind, q.group, q.verdict) == ("change", EVERYTHING, ZERO) for q in e.quantities if not q.passed):
        return [*e.quantities], [named("nothing_trains", [OUTPUT], e.rule)]
    if e.failing and (text := _not_finite(e.table)):
        return [*e.quantities], [Cause("not_finite", (OUTPUT,), text)]
    if causes := [*_read_causes(e), *_measured_causes(e)]:
        return [*e.quantities], causes
    right = {axis for axis, reading in e.readings.items() if reading is not None and reading.right}
    settled = [without_cause(q, e.tolerance) if q.axis in right else q for q in e.quantities]
    return settled, _open_causes(dataclasses.replace(e, quantities=settled))


def _read_causes(e: Evidence) -> list[Cause]:
    return [
        Cause(f.name, f.paths, f"read from the code over {axis}: {f.text} Write: {f.code}")
        for axis, reading in e.readings.items()
        for f in (reading.findings if reading else ())
    ]


def _measured_causes(e: Evidence) -> list[Cause]:
    """The mistakes that sizes show, without those that the code has or excludes."""
    if all(q.verdict == UNCLEAR for q in e.failing):
        return []
    found = {f.name for reading in e.readings.values() for f in (reading.findings if reading else ())}
    excluded = {
        name
        for name, axis in _FORWARD.items()
        if (reading := e.readings.get(axis)) is not None and (reading.excludes or found)
    }
    mistakes = {name: at for name, at in (*_initial_mistakes(e), *_training_mistakes(e)) if at}
    return [named(name, at, e.rule) for name, at in mistakes.items() if name not in found | excluded]


def _open_causes(e: Evidence) -> list[Cause]:
    """What a failure without a known cause is called."""
    layers = sorted({q.group if q.group != EVERYTHING and q.kind == "change" else q.name for q in e.failing})
    verdicts = {q.verdict for q in e.failing}
    if not verdicts:
        return []
    if verdicts == {UNCLEAR}:
        return [Cause("unclear", tuple(layers), what_to_run(e.table, e.failing, e.tolerance))]
    return [named("below_precision" if BELOW_PRECISION in verdicts else "unknown", layers, e.rule)]


def _not_finite(table: Table) -> str:
    """What to do about NaN or infinity in the smallest networks; empty if there is none."""
    for axis in table.axes():
        smallest, steps = table.sizes(axis)[0], table.steps(axis, EVERYTHING, "activation")
        for step in (steps[0], steps[-1]):
            values = table.values(axis, EVERYTHING, "activation", OUTPUT, step).get(smallest, [])
            if all(math.isfinite(value) and value < HUGE for value in values):
                continue
            if step == 0:
                return "the outputs are not finite before any step: look for NaN or infinity in the batch."
            return f"the outputs of the smallest network are not finite after {step} steps: lower the learning rate."
    return ""


def _initial_mistakes(e: Evidence) -> Iterator[_Mistake]:
    """Mistakes in the rule, and those that show before training: they explain what is wrong after it."""
    rule, stable_start = e.rule, e.rule.alpha >= 0.5
    grows_with_depth = [q.name for q in e.failed("depth", "activation")]
    unstable = not stable_start or rule.alpha + least_gamma(rule) < 1
    if unstable and (e.failed("depth", "change") or (not stable_start and grows_with_depth)):
        yield "rule_not_stable_in_depth", [BRANCHES]
    if rule.width != "mup" and e.failed("width", "change"):
        yield "rule_without_width", [EVERYTHING]
    if rule.gamma0_width_exponent < 0 and "width" in e.table.axes():
        yield "lazy_rule", [FEATURES]
    reused = [path for path in e.layers.reused if e.layers.weights[path].in_branch]
    if any(not q.passed for q in e.quantities if q.axis == "depth"):
        yield "repeated_weights", reused
    if rule.width == "mup":
        grown, readouts = e.failures("width", START, GROWS), e.weights(Role.OUTPUT)
        yield "fixed_std_init", [path for path in grown if path not in readouts]
        yield "readout_init_grows_with_width", [path for path in grown if path in readouts]
        if any(name != OUTPUT for name in e.failures("width", "activation", VANISHES)):
            vanishing = {q.name for q in e.quantities if (q.axis, q.kind, q.verdict) == ("width", START, VANISHES)}
            yield "hidden_init_falls_with_width", [path for path in e.weights(Role.HIDDEN) if path in vanishing]
        falling = [path for path in e.failures("width", START, VANISHES) if path not in e.wrong_roles]
        yield "input_init_falls_with_width", falling
    yield "double_counted_init", e.failures("depth", START, VANISHES)
    if stable_start and (grows_with_depth or e.groups_growing_outputs("depth", Role.OUTPUT)):
        # Scores of tokens that have become alike have a mean over tokens.
        means = [name for name in e.table.features("depth") if e.mean_takes_over(name)]
        yield "branch_outputs_have_a_mean", means
        if grows_with_depth and not means and not reused:
            yield "norm_cancels_multiplier", e.branch_weights_before_norms
            yield "missing_branch_multiplier", [] if e.branch_weights_before_norms else grows_with_depth


def _training_mistakes(e: Evidence) -> Iterator[_Mistake]:
    """Mistakes that show in the changes by single groups of parameters."""
    shrinking_decay = [q.name for q in e.quantities if q.kind == DECAY and q.verdict == VANISHES]
    yield "decay_inside_multipliers", list(dict.fromkeys(shrinking_decay))
    wrong_updates = [path for axis in e.table.axes() for v in (GROWS, VANISHES) for path in e.updates(axis, v)]
    entrywise = not wrong_updates or e.probe.is_entrywise()
    yield "not_entrywise", [] if entrywise else list(dict.fromkeys(wrong_updates))
    growing = e.growing_groups("width")
    yield "wrong_role", [path for path in e.wrong_roles if e.layers.group_of_weight[path] in growing]
    if not entrywise:
        return
    if e.rule.alpha >= 0.5 and not e.failed("depth", "activation"):
        yield from _branch_mistakes(e)
    if e.rule.width == "mup":
        # Without a readout of its own, the network has a tied embedding, which is an input weight.
        readouts = e.groups_growing_outputs("width", Role.OUTPUT if e.weights(Role.OUTPUT) else Role.INPUT)
        yield "readout_not_scaled", [g for g in readouts if not e.failed("width", "change", g, FEATURES)]
        of_scores = [g for g in e.layers.score_groups if e.verdicts("width", g)[0] in (GROWS, EXPLODES)]
        of_scores = [g for g in of_scores if not set(e.layers.weights_of(g)) & {*wrong_updates, *e.wrong_roles}]
        yield "attention_scale", [q.name for q in e.failed("width", ATTENTION_SCALE)] or sorted(of_scores)
        yield from _embedding_mistakes(e)
        yield "missing_width_update_factor", e.updates("width", GROWS)
        if e.failed("width", "change"):
            yield "random_start_of_few_features", random_to_few_features(e.table, e.layers)
    yield "missing_depth_update_factor", e.updates("depth", GROWS)
    for axis in ("width", "depth"):
        yield f"updates_too_small_in_{axis}", e.updates(axis, VANISHES)


def _branch_mistakes(e: Evidence) -> Iterator[_Mistake]:
    """Wrong multipliers of branches, and a wrong ``in_branch``: parameters outside move features by order 1."""
    growing = e.growing_groups("depth")
    outside = [group for group in growing if group not in e.layers.branch_groups]
    not_scaled = [
        group
        for group in growing
        if group in e.layers.branch_groups
        and any(e.gradient_excess("depth", path) > _CLEARLY for path in e.layers.weights_of(group))
    ]
    # The stem may hide at the start that the branches add up.
    every_block = [group for group in not_scaled if group not in e.layers.once_groups]
    normed = e.branch_weights_before_norms if every_block else []
    yield "norm_cancels_multiplier", normed
    yield "missing_branch_multiplier", [] if normed else every_block
    yield "shortcut_in_branch", [group for group in not_scaled if group in e.layers.once_groups]
    if outside == [OTHER_VECTORS] and e.layers.on_stream:
        yield "norms_on_the_stream", e.layers.on_stream
    elif not every_block:
        yield "in_branch_incomplete", outside


def _embedding_mistakes(e: Evidence) -> Iterator[_Mistake]:
    """Factors that depend on width, after an embedding or before the outputs."""
    stems = [g for g in e.groups(Role.INPUT) if not set(e.layers.weights_of(g)) & set(e.wrong_roles)]
    scaled = [g for g in stems if e.verdicts("width", g)[0] in (GROWS, EXPLODES)]
    start = lambda path: e.table.fit("width", EVERYTHING, "weight", path, 0).slope
    started_right = all(start(path) < -_CLEARLY for path in e.weights(Role.HIDDEN))
    if not scaled and started_right and any(q.name != OUTPUT for q in e.failed("width", "activation")):
        # Before norms, a stream that is too large hides in the effect of its embedding, but not in its gradient.
        excess = {g: max(e.gradient_excess("width", path) for path in e.layers.weights_of(g)) for g in stems}
        scaled = [g for g, value in excess.items() if value > max(excess.values()) - _CLEARLY]
    yield "embedding_scaled_with_width", scaled
    readouts = e.groups(Role.OUTPUT) or [e.layers.group_of_weight[path] for path in e.layers.tied]
    yield "readout_scaled_twice", [g for g in readouts if e.verdicts("width", g)[1] == VANISHES]
