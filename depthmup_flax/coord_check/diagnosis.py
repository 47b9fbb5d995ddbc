"""From wrong exponents to the likely cause and the layers at fault."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from depthmup_flax.coord_check.judgment import (
    ATTENTION_SCALE,
    DECAY,
    FEATURES,
    GROWS,
    START,
    UNCLEAR,
    UPDATE,
    VANISHES,
    Quantity,
)
from depthmup_flax.coord_check.layer_names import Layers
from depthmup_flax.coord_check.notes import RANDOM_START, random_to_few_features
from depthmup_flax.coord_check.probe import Probe
from depthmup_flax.coord_check.recorded_sizes import BRANCHES, EVERYTHING, OTHER_VECTORS, OUTPUT, Table
from depthmup_flax.infer.audit_table import Finding
from depthmup_flax.rule.parametrization import WIDTH_RULES, Geometry, Parametrization, Role
from depthmup_flax.util.power_fits import BELOW_PRECISION, EXPLODES, HUGE, ZERO

_CLEARLY = 0.25  # half of 1/2, the smallest difference between the exponents of two causes

# What is wrong and what to do, for each cause that `diagnose` names; {alpha} and {gamma} are those of the rule.
_TEXTS = {
    "nothing_trains": "the outputs do not move when everything trains: set a learning rate above 0, without warm-up.",
    "below_precision": (
        "some changes are below 1e-5 of the values that change, so rounding decides them: use a larger learning rate "
        "or more steps, or look for a tiny factor."
    ),
    "unknown": (
        "no known mistake shows this pattern: look at the first of these layers, and try larger sizes, more seeds, at "
        "least 32 examples if there are batch norms, or a smaller learning rate."
    ),
    "rule_not_stable_in_depth": (
        "alpha = {alpha}, gamma = {gamma} is unstable; depth needs alpha >= 1/2 (TP6 Claim 7.1) and "
        "alpha + gamma >= 1 (Claim 7.2): use 'depth_mup'."
    ),
    "rule_without_width": "the rule's width factors are 'standard', not 'mup': use 'depth_mup' or 'mup'.",
    "lazy_rule": (
        "gamma0 falls with width, so features stop moving (the lazy limit, B24 C.1): use gamma0_width_exponent=0."
    ),
    "repeated_weights": (
        "several layers use the same weights in branches, so their gradients and effects add up in another way than "
        "those of separate weights, for which the rule is made: give each layer its own, or use alpha=1 with "
        "normalized updates, such as Adam's."
    ),
    "fixed_std_init": (
        "hidden weights start with the same standard deviation at every width: use 1/sqrt(fan_in) (lecun_normal), or "
        "pass the parameters through rescale_init."
    ),
    "readout_init_grows_with_width": (
        "the initial values of the readout grow with width: use the base model's standard deviation at every width "
        "(rule.readout_fan_in), or pass the parameters through rescale_init."
    ),
    "hidden_init_falls_with_width": (
        "hidden weights start smaller than 1/sqrt(fan_in) at larger widths, so activations vanish: use 1/sqrt(fan_in) "
        "(lecun_normal), or pass the parameters through rescale_init."
    ),
    "input_init_falls_with_width": (
        "the initial values of input weights shrink with width (as nn.Embed's do): use the same standard deviation at "
        "every width, or pass the parameters through rescale_init, here network.rescaled(base_init, rule)."
    ),
    "double_counted_init": (
        "initial weights shrink with depth in addition to the branch multiplier: use the same standard deviation at "
        "every depth (no 1/sqrt(2 L))."
    ),
    "branch_outputs_have_a_mean": (
        "the outputs of the branches have a mean over features, so L of them add up to L^(1/2) in spite of the branch "
        "multiplier: end branches in weights instead of a ReLU, or subtract the mean (TP6 sec. 6.3)."
    ),
    "norm_cancels_multiplier": (
        "a norm follows these weights in their branches, so a multiplier in front of it has no effect: multiply the "
        "output of the norm by rule.residual_multiplier(r), which is r^-{alpha}."
    ),
    "missing_branch_multiplier": (
        "activations or their changes grow with depth, so residual branches are not multiplied by r^-{alpha} after "
        "their last norm: multiply their outputs by rule.residual_multiplier(r), or use ResidualBranch."
    ),
    "decay_inside_multipliers": (
        "the share of a weight that decay removes in a step shrinks with the network, so decay is inside the "
        "multipliers: pass weight_decay to depthmup(direction, ...), and a direction without decay."
    ),
    "not_entrywise": (
        "the update of an entry depends on other entries (a trust ratio, clipping by the global norm), and its size "
        "does not follow the rule: use an entrywise direction such as optax.scale_by_adam(), and clip_rms= to clip."
    ),
    "wrong_role": (
        "info gives these weights a role that their shapes contradict (hidden weights alone have two dimensions that "
        "grow with width): check the roles in param_table, and the shapes of the base model."
    ),
    "shortcut_in_branch": (
        "info places these weights inside branches, but their effect lacks the branch multiplier, so they are on the "
        "shortcut (a projection, a downsampling): leave them out of in_branch."
    ),
    "norms_on_the_stream": (
        "every layer has scales and biases on the stream, as norms after the sum have, and their effects add up with "
        "depth: use norms in front of branches (pre-norm), or norms without scale and bias."
    ),
    "in_branch_incomplete": (
        "parameters that info places outside residual branches have an effect that grows with depth, so some are "
        "inside: let in_branch match all parameters of all branches."
    ),
    "readout_not_scaled": (
        "outputs grow with width when the readout trains, but features do not, so its product is not multiplied by "
        "1/m: use Readout, or multiply by rule.readout_multiplier(m)."
    ),
    "attention_scale": (
        "attention logits grow with the head dimension d, so they are scaled by 1/sqrt(d): scale by "
        "rule.attention_scale(d, d_base), which is sqrt(d_base) / d."
    ),
    "embedding_scaled_with_width": (
        "an embedding is multiplied by a factor that grows with width, such as sqrt(D): remove it, and multiply the "
        "embedding's standard deviation by its value at the base width."
    ),
    "readout_scaled_twice": (
        "outputs vanish with width when the readout trains, but its updates are right, so its product has another "
        "factor besides 1/m, such as 1/sqrt(D): keep rule.readout_multiplier(m) alone."
    ),
    "missing_width_update_factor": (
        "updates do not shrink with width as the rule says (hidden weights: 1/m for Adam): make the optimizer with "
        "depthmup(direction, info, rule, ...), and check the roles in param_table."
    ),
    "random_start_of_few_features": RANDOM_START,
    "missing_depth_update_factor": (
        "updates inside branches do not shrink with depth as r^-gamma: make the optimizer with depthmup(direction, "
        "info, rule, ...), where info records them as in_branch with their depth_ratio."
    ),
    "updates_too_small_in_width": (
        "updates shrink faster with width than the rule says: look for a factor that is applied twice."
    ),
    "updates_too_small_in_depth": (
        "updates shrink faster with depth than the rule says: look for a factor that is applied twice."
    ),
}
# Mistakes in the forward pass or in `in_branch`, which an audit of the code also sees.
_FORWARD = frozenset(
    {"missing_branch_multiplier", "norm_cancels_multiplier", "shortcut_in_branch", "in_branch_incomplete",
     "readout_not_scaled", "readout_scaled_twice", "embedding_scaled_with_width", "attention_scale", "wrong_role"}
)  # fmt: skip
_Mistake = tuple[str, Sequence[str]]  # a key of `_TEXTS`, and the layers that show it; none: not this mistake


@dataclasses.dataclass(frozen=True)
class Cause:
    """A likely cause of a failed check.

    Attributes:
      name: short, for programs: ``missing_branch_multiplier``, ...
      layers: paths of the activations, groups or parameters that show it.
      text: what is wrong and what to do, one sentence.
    """

    name: str
    layers: tuple[str, ...]
    text: str


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What a diagnosis is based on."""

    table: Table
    quantities: Sequence[Quantity]
    rule: Parametrization
    layers: Layers
    tolerance: float
    probe: Probe
    found: Mapping[str, Sequence[Finding] | None]  # axis -> `code_findings`

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
        fit = self.table.fit(axis, self.layers.group(path), "gradient", path, 0)
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


def diagnose(evidence: Evidence) -> list[Cause]:
    """The causes that the evidence supports, the most basic first; a failed check has at least one.

    Findings of the audit are causes even where the sizes tried do not show them.
    """

    def cause(name: str, layers: Sequence[str]) -> Cause:
        rule = evidence.rule
        return Cause(name, tuple(layers), _TEXTS[name].format(alpha=f"{rule.alpha:g}", gamma=f"{_least_gamma(rule):g}"))

    failures = [q for q in evidence.quantities if not q.passed]
    if any((q.kind, q.group, q.verdict) == ("change", EVERYTHING, ZERO) for q in failures):
        return [cause("nothing_trains", [OUTPUT])]
    if failures and (text := _not_finite(evidence.table)):
        return [Cause("not_finite", (OUTPUT,), text)]
    read = [
        Cause(f.name, f.paths, f"read from the code, the smallest {axis} as the base model: {f.text} Write: {f.code}")
        for axis, findings in evidence.found.items()
        for f in findings or ()
    ]
    if not failures:
        return read
    layers = tuple(sorted({q.group if q.group != EVERYTHING and q.kind == "change" else q.name for q in failures}))
    verdicts = {q.verdict for q in failures}
    if verdicts == {UNCLEAR}:
        return [*read, Cause("unclear", layers, _what_to_run(evidence, failures))]
    mistakes = (*_initial_mistakes(evidence), *_training_mistakes(evidence))
    named = {one.name for one in read}
    measured = [cause(name, at) for name, at in mistakes if at and name not in named]
    # If the audit sees no such mistake, sizes that look like one count only if there is no other cause.
    others = [one for one in measured if one.name not in _FORWARD]
    was_read = None not in evidence.found.values()
    if causes := [*read, *(others if was_read and (read or others) else measured)]:
        return causes
    return [cause("below_precision" if BELOW_PRECISION in verdicts else "unknown", layers)]


def _least_gamma(rule: Parametrization) -> float:
    return float(rule.gamma if rule.inner_gamma is None else min(rule.gamma, rule.inner_gamma))


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


def _what_to_run(e: Evidence, unclear: Sequence[Quantity]) -> str:
    """The sizes or seeds that decide."""
    lines = []
    for axis in e.table.axes():
        open_here = [q for q in unclear if q.axis == axis]
        narrow = [(q.trend, q.expected) for q in open_here if q.trend and q.fit.interval < e.tolerance]
        if narrow:
            wanted = (trend.sizes_needed(e.table.sizes(axis), exponent, e.tolerance) for trend, exponent in narrow)
            text = "exponents are too far from the right ones for a pass, and too near for a mistake"
            lines.append(f"{text}, as those of small networks may be: run {axis}s={max(wanted)}")
        if len(narrow) < len(open_here):
            seeds = max(len(seeds) for seeds in e.table.values(axis, EVERYTHING, "activation", OUTPUT, 0).values())
            width = max(q.fit.interval for q in open_here)
            times = min(4, max(2, math.ceil((width / e.tolerance) ** 2)))
            lines.append(f"the intervals over {axis} are too wide for a verdict: run seeds={times * seeds}")
    return "; ".join(lines) + "."


def _initial_mistakes(e: Evidence) -> Iterator[_Mistake]:
    """Mistakes in the rule, and those that show before training: they explain what is wrong after it."""
    rule, stable_start = e.rule, e.rule.alpha >= 0.5
    grows_with_depth = [q.name for q in e.failed("depth", "activation")]
    unstable = not stable_start or rule.alpha + _least_gamma(rule) < 1
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
    on_stream = [path for path, leaf in e.layers.vectors.items() if not leaf.in_branch and "*" in path]
    if outside == [OTHER_VECTORS] and on_stream:
        yield "norms_on_the_stream", on_stream
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
