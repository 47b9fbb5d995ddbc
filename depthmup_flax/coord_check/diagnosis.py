"""From wrong exponents to the layers at fault and the likely cause."""

from __future__ import annotations

import dataclasses
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

_CLEARLY = 0.25  # exponents of different causes differ by 1/2 or more; half of that separates them


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
    """What a diagnosis is based on: all records, the judged quantities, the rule in use, the layers of the networks.

    ``found`` is axis -> `code_findings`.
    """

    table: Table
    quantities: Sequence[Quantity]
    rule: Parametrization
    known: Layers
    tolerance: float
    probe: Probe
    found: Mapping[str, Sequence[Finding] | None]

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

    def failures(self, axis: str, kind: str, verdict: str) -> list[Quantity]:
        """Quantities that did not pass, with this verdict."""
        return [q for q in self.quantities if (q.axis, q.kind, q.verdict) == (axis, kind, verdict) and not q.passed]

    def weights(self, role: Role) -> list[str]:
        """Paths of the weights of a role."""
        return [path for path, leaf in self.known.weights.items() if leaf.role is role]

    def weight_slope(self, axis: str, path: str) -> float:
        """Exponent of a parameter's initial root mean square; NaN if it starts at zero."""
        return self.table.fit(axis, EVERYTHING, "weight", path, 0).slope

    def updates(self, axis: str, verdict: str) -> list[str]:
        """Weights whose own update is at fault: it grows or vanishes, compared with the rule's.

        The update of an optimizer that is linear in the gradient also shows what is wrong with the gradient, which is a
        mistake of the forward pass.
        """
        return [
            q.name
            for q in self.failures(axis, UPDATE, verdict)
            if abs(q.fit.slope - q.expected - self.gradient_excess(axis, q.name)) > _CLEARLY
            and BELOW_PRECISION not in self.verdicts(axis, q.group)
        ]

    def gradient_excess(self, axis: str, path: str) -> float:
        """Exponent of a weight's gradient through a random readout, less that of the rule; 0 if it is unknown.

        The rule's gradient scale times the gradient is of order one (TP6 Definition 6.1).
        """
        leaf, rule = self.known.leaf(path), self.rule
        expected = 0.0
        if axis == "depth":
            expected = -rule.alpha if leaf.in_branch else 0.0
        elif rule.width == "mup":
            exponents = WIDTH_RULES[Geometry.LINEAR][leaf.role]
            expected = -float(exponents.gradient_in + exponents.gradient_out)
        fit = self.table.fit(axis, self.known.group(path), "gradient", path, 0)
        return fit.slope - expected if fit.state == "fitted" and math.isfinite(fit.slope) else 0.0

    def alone(self, axis: str, group: str, name: str) -> Quantity | None:
        """The change of the features or outputs when one group trains alone."""
        found = (q for q in self.quantities if (q.axis, q.kind, q.group, q.name) == (axis, "change", group, name))
        return next(found, None)

    def verdicts(self, axis: str, group: str) -> tuple[str, str]:
        """The verdicts on the features and the outputs when one group trains alone; the group's updates are right."""
        features, outputs = (self.alone(axis, group, name) for name in (FEATURES, OUTPUT))
        return features.verdict if features else "", outputs.verdict if outputs else ""

    def groups(self, role: Role) -> list[str]:
        """Groups of the weights of a role outside branches, with right updates over width."""
        wrong = {*self.updates("width", GROWS), *self.updates("width", VANISHES)}
        paths = [path for path in self.weights(role) if not self.known.weights[path].in_branch and path not in wrong]
        return [self.known.group_of_weight[path] for path in paths]

    def wrong_roles(self) -> list[str]:
        """Weights outside the rule's vectors whose growing dimensions contradict their role."""
        wrong = []
        for path, shapes in self.known.shapes_over_width.items():
            leaf, shape = self.known.weights[path], shapes[-1]
            growing = sum(a != b for a, b in zip(shapes[0], shape, strict=True)) if len(shapes[0]) == len(shape) else 0
            if growing and not leaf.to_few_features and (growing >= 2) != (leaf.role is Role.HIDDEN):
                wrong.append(path)
        return wrong

    def growing_groups(self, axis: str) -> list[str]:
        """Groups that move features or outputs more, the larger the network."""
        return sorted({q.group for q in self.failed(axis, "change") if q.group not in (EVERYTHING, BRANCHES)})

    def groups_growing_outputs(self, axis: str, role: Role) -> list[str]:
        """Groups with weights of a role that move the outputs more, the larger the network."""
        with_role = {self.known.group_of_weight[path] for path in self.weights(role)}
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
    """The causes that the evidence supports, the most basic first; if the check failed, one that says so if none is.

    What `audit` finds in the code is a cause even where the sizes tried do not show it.
    """
    failures = [q for q in evidence.quantities if not q.passed]
    if any((q.kind, q.group, q.verdict) == ("change", EVERYTHING, ZERO) for q in failures):
        text = "the outputs do not move when everything trains: set a learning rate above 0, without warm-up."
        return [Cause("nothing_trains", (OUTPUT,), text)]
    if failures and (text := _not_finite(evidence.table)):
        return [Cause("not_finite", (OUTPUT,), text)]
    read, was_read = _read(evidence)
    if not failures:
        return read
    layers = tuple(sorted({q.group if q.group != EVERYTHING and q.kind == "change" else q.name for q in failures}))
    verdicts = {q.verdict for q in failures}
    if verdicts == {UNCLEAR}:
        return [*read, Cause("unclear", layers, _what_to_run(evidence, failures))]
    mistakes = (*_initial_mistakes(evidence), *_training_mistakes(evidence))
    named = {cause.name for cause in read}
    measured = [Cause(name, tuple(layers), text) for name, layers, text in mistakes if layers and name not in named]
    # Where the code shows no such mistake, sizes that look like one are kept if there is no other cause.
    others = [cause for cause in measured if cause.name not in _FORWARD]
    if causes := [*read, *(others if was_read and (read or others) else measured)]:
        return causes
    if BELOW_PRECISION in verdicts:
        text = (
            "some changes are below 1e-5 of the values that change, so rounding decides them: use a larger learning "
            "rate or more steps, or look for a tiny factor."
        )
        return [Cause("below_precision", layers, text)]
    text = (
        "no known mistake shows this pattern: look at the first of these layers, and try larger sizes (small ones are "
        "not asymptotic), more seeds, a batch of at least 32 examples if there are batch norms, or a smaller learning "
        "rate."
    )
    return [Cause("unknown", layers, text)]


# Mistakes in the forward pass or in ``in_branch``, which a trace tells apart.
_FORWARD = frozenset(
    {"missing_branch_multiplier", "norm_cancels_multiplier", "shortcut_in_branch", "in_branch_incomplete",
     "readout_not_scaled", "readout_scaled_twice", "embedding_scaled_with_width", "attention_scale", "wrong_role"}
)  # fmt: skip


def _read(e: Evidence) -> tuple[list[Cause], bool]:
    """What `audit` finds in the largest networks, and whether it could read them."""
    causes = [
        Cause(f.name, f.paths, f"read from the code, the smallest {axis} as the base model: {f.text} Write: {f.code}")
        for axis, findings in e.found.items()
        for f in findings or ()
    ]
    return causes, None not in e.found.values()


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


# The fields of a `Cause`; no layers if there is no sign of it.
_Mistake = tuple[str, Sequence[str], str]


def _initial_mistakes(e: Evidence) -> Iterator[_Mistake]:
    """Mistakes in the rule, and those that show before training: they explain what is wrong after it."""
    rule, stable_start = e.rule, e.rule.alpha >= 0.5
    grows_with_depth = [q.name for q in e.failed("depth", "activation")]

    gamma = rule.gamma if rule.inner_gamma is None else min(rule.gamma, rule.inner_gamma)
    unstable = not stable_start or rule.alpha + gamma < 1
    if unstable and (e.failed("depth", "change") or (not stable_start and grows_with_depth)):
        text = (
            f"alpha = {rule.alpha:g}, gamma = {gamma:g} is unstable; depth needs alpha >= 1/2 (TP6 Claim 7.1) and "
            "alpha + gamma >= 1 (Claim 7.2): use 'depth_mup'."
        )
        yield "rule_not_stable_in_depth", [BRANCHES], text
    if rule.width != "mup" and e.failed("width", "change"):
        text = "the rule's width factors are 'standard', not 'mup': use 'depth_mup' or 'mup'."
        yield "rule_without_width", [EVERYTHING], text
    if rule.gamma0_width_exponent < 0 and "width" in e.table.axes():
        text = (
            "gamma0 falls with width, so features stop moving (the lazy limit, B24 C.1): use gamma0_width_exponent=0."
        )
        yield "lazy_rule", [FEATURES], text
    text = (
        "weights in branches are used again by other layers, so their gradients and effects add up in another way than "
        "those of weights of their own: the rule is for separate weights. Give each layer its own, or use alpha=1 with "
        "normalized updates, such as Adam's."
    )
    wrong = any(not q.passed for q in e.quantities if q.axis == "depth")
    yield "repeated_weights", [p for p in e.known.reused if wrong and e.known.weights[p].in_branch], text
    if rule.width == "mup":
        text = (
            "hidden weights start with the same standard deviation at every width: use 1/sqrt(fan_in) (lecun_normal), "
            "or pass the parameters through rescale_init."
        )
        grown = [q.name for q in e.failures("width", START, GROWS)]
        yield "fixed_std_init", [path for path in grown if path not in e.weights(Role.OUTPUT)], text
        text = (
            "the initial values of the readout grow with width: use the same standard deviation at every width, that "
            "of the base model (rule.readout_fan_in), or pass the parameters through rescale_init."
        )
        yield "readout_init_grows_with_width", [path for path in grown if path in e.weights(Role.OUTPUT)], text
        wrong_roles = e.wrong_roles()
        falling = [q.name for q in e.failures("width", START, VANISHES) if q.name not in wrong_roles]
        vanishing = {q.name for q in e.quantities if (q.axis, q.kind, q.verdict) == ("width", START, VANISHES)}
        vanish = any(q.name != OUTPUT for q in e.failures("width", "activation", VANISHES))
        text = (
            "hidden weights start smaller than 1/sqrt(fan_in) at larger widths, so activations vanish: use "
            "1/sqrt(fan_in) (lecun_normal), or pass the parameters through rescale_init."
        )
        yield "hidden_init_falls_with_width", [p for p in e.weights(Role.HIDDEN) if vanish and p in vanishing], text
        text = (
            "the initial values of input weights shrink with width (as nn.Embed's do): use the same standard deviation "
            "at every width, or pass the parameters through rescale_init, here network.rescaled(base_init, rule)."
        )
        yield "input_init_falls_with_width", falling, text
    counted = [q.name for q in e.failures("depth", START, VANISHES)]
    text = (
        "initial weights shrink with depth, and so does the branch multiplier, which counts depth twice: use the same "
        "standard deviation at every depth (no 1/sqrt(2 L))."
    )
    yield "double_counted_init", counted, text
    if stable_start and (grows_with_depth or e.groups_growing_outputs("depth", Role.OUTPUT)):
        # Scores of tokens that have become alike have a mean over tokens.
        means = [name for name in e.table.features("depth") if e.mean_takes_over(name)]
        text = (
            "the outputs of the branches have a mean over features, and L of them add up to L^(1/2) in spite of the "
            "branch multiplier: end branches in weights instead of a ReLU, or subtract the mean (TP6 sec. 6.3)."
        )
        yield "branch_outputs_have_a_mean", means, text
        text = (
            f"activations grow with depth before any step, so a residual branch is not multiplied by r^-{rule.alpha:g},"
            " or is multiplied before a norm that cancels it: multiply its output by rule.residual_multiplier(r), or "
            "use ResidualBranch."
        )
        reused = any(e.known.weights[path].in_branch for path in e.known.reused)
        inside = [path for path, leaf in e.known.weights.items() if leaf.in_branch]
        normed = [] if means or reused or not grows_with_depth else e.probe.before_norms(inside)
        norm_text = (
            "activations grow with depth before any step, and a norm follows these weights in their branches, so a "
            f"multiplier in front of it has no effect: multiply the output of the norm by r^-{rule.alpha:g}, "
            "rule.residual_multiplier(r)."
        )
        yield "norm_cancels_multiplier", normed, norm_text
        yield "missing_branch_multiplier", [] if means or reused or normed else grows_with_depth, text


def _training_mistakes(e: Evidence) -> Iterator[_Mistake]:
    """Mistakes that show in the changes by single groups of parameters."""
    growing = {axis: e.growing_groups(axis) for axis in ("width", "depth")}
    shrinking_decay = [q.name for q in e.quantities if q.kind == DECAY and q.verdict == VANISHES]
    text = (
        "the share of a weight that decay removes in a step shrinks with the network, so decay is inside the "
        "multipliers: pass weight_decay to depthmup(direction, ...), and only the direction, without decay."
    )
    yield "decay_inside_multipliers", list(dict.fromkeys(shrinking_decay)), text
    wrong_updates = [path for axis in e.table.axes() for v in (GROWS, VANISHES) for path in e.updates(axis, v)]
    text = (
        "the update of an entry depends on other entries (a trust ratio, clipping by the global norm), and its size "
        "does not follow the rule: use an entrywise direction such as optax.scale_by_adam(), and clip_rms= to clip."
    )
    entrywise = not wrong_updates or e.probe.is_entrywise()
    yield "not_entrywise", [] if entrywise else list(dict.fromkeys(wrong_updates)), text
    wrong_roles = e.wrong_roles()
    text = (
        "info gives these weights a role that their shapes contradict (hidden weights alone have two dimensions "
        "that grow with width): check the roles in param_table, and the shapes of the base model."
    )
    yield "wrong_role", [p for p in wrong_roles if e.known.group_of_weight[p] in growing["width"]], text
    if not entrywise:
        return
    if e.rule.alpha >= 0.5 and not e.failed("depth", "activation"):
        # Parameters outside branches move features by order 1 at every depth unless the rule or the forward is wrong.
        outside = [group for group in growing["depth"] if group not in e.known.branch_groups]
        inside = [group for group in growing["depth"] if group in e.known.branch_groups]
        not_scaled = [g for g in inside if any(e.gradient_excess("depth", p) > _CLEARLY for p in e.known.weights_of(g))]
        # The stem may hide at the start that the branches add up.
        every_block = [group for group in not_scaled if group not in e.known.once_groups]
        normed = (
            e.probe.before_norms([p for p, leaf in e.known.weights.items() if leaf.in_branch]) if every_block else []
        )
        multiplier_text = (
            "the effect of weights in branches grows with depth, but their updates follow the rule, so the branches "
            f"are not multiplied by r^-{e.rule.alpha:g} after their last norm: multiply what the stream adds by "
            "rule.residual_multiplier(r), or use ResidualBranch."
        )
        yield "norm_cancels_multiplier", normed, multiplier_text
        yield "missing_branch_multiplier", [] if normed else every_block, multiplier_text
        not_scaled = [group for group in not_scaled if group in e.known.once_groups]
        shortcut_text = (
            "info places these weights inside branches, but their effect lacks the branch multiplier, so they are on "
            "the shortcut (a projection, a downsampling): leave them out of in_branch."
        )
        yield "shortcut_in_branch", not_scaled, shortcut_text
        on_stream = [p for p, leaf in e.known.vectors.items() if not leaf.in_branch and "*" in p]
        text = (
            "scales and biases that stand on the stream in every layer, as those of norms after the sum do, move it "
            "once per layer, and their effects add up with depth: use norms in front of branches (pre-norm), or norms "
            "without scale and bias."
        )
        yield "norms_on_the_stream", on_stream if outside == [OTHER_VECTORS] else [], text
        outside = [] if outside == [OTHER_VECTORS] and on_stream else outside
        text = (
            "parameters that info places outside residual branches have an effect that grows with depth, so some are "
            "inside: let in_branch match all parameters of all branches."
        )
        yield "in_branch_incomplete", [] if every_block else outside, text
    if e.rule.width == "mup":
        # Without a readout of its own, the network has a tied embedding, which is an input weight.
        readouts = e.groups_growing_outputs("width", Role.OUTPUT if e.weights(Role.OUTPUT) else Role.INPUT)
        alone = [group for group in readouts if not e.failed("width", "change", group, FEATURES)]
        text = (
            "outputs grow with width when the readout trains, but features do not, so its product is not multiplied by "
            "1/m: use Readout, or multiply by rule.readout_multiplier(m)."
        )
        yield "readout_not_scaled", alone, text
        text = (
            "attention logits grow with the head dimension d, so they are scaled by 1/sqrt(d): scale by "
            "rule.attention_scale(d, d_base), which is sqrt(d_base) / d."
        )
        of_scores = [g for g in e.known.score_groups if e.verdicts("width", g)[0] in (GROWS, EXPLODES)]
        of_scores = [g for g in of_scores if not set(e.known.weights_of(g)) & {*wrong_updates, *wrong_roles}]
        named = [q.name for q in e.failed("width", ATTENTION_SCALE)]
        yield "attention_scale", named or sorted(of_scores), text
        yield from _embedding_mistakes(e, wrong_roles)
        text = (
            "updates do not shrink with width as the rule says (hidden weights: 1/m for Adam): make the optimizer with "
            "depthmup(direction, info, rule, ...), and check the roles in param_table."
        )
        yield "missing_width_update_factor", e.updates("width", GROWS), text
        grows = e.failed("width", "change")
        yield "random_start_of_few_features", random_to_few_features(e.table, e.known) if grows else [], RANDOM_START
    text = (
        "updates inside branches do not shrink with depth as r^-gamma: make the optimizer with depthmup(direction, "
        "info, rule, ...), where info records them as in_branch with their depth_ratio."
    )
    yield "missing_depth_update_factor", e.updates("depth", GROWS), text
    for axis in ("width", "depth"):
        text = f"updates shrink faster with {axis} than the rule says: look for a factor that is applied twice."
        yield f"updates_too_small_in_{axis}", e.updates(axis, VANISHES), text


def _embedding_mistakes(e: Evidence, wrong_roles: Sequence[str]) -> Iterator[_Mistake]:
    """Factors that depend on width, after an embedding or before the outputs."""
    stems = [g for g in e.groups(Role.INPUT) if not set(e.known.weights_of(g)) & set(wrong_roles)]
    scaled = [g for g in stems if e.verdicts("width", g)[0] in (GROWS, EXPLODES)]
    started_right = all(e.weight_slope("width", path) < -_CLEARLY for path in e.weights(Role.HIDDEN))
    if not scaled and started_right and any(q.name != OUTPUT for q in e.failed("width", "activation")):
        # Before norms, a stream that is too large hides in the effect of its embedding, but not in its gradient.
        excess = {g: max(e.gradient_excess("width", path) for path in e.known.weights_of(g)) for g in stems}
        scaled = [g for g, value in excess.items() if value > max(excess.values()) - _CLEARLY]
    text = (
        "an embedding is multiplied by a factor that grows with width, such as sqrt(D): remove it, and give the "
        "embedding the standard deviation that it had at the base width, times the factor there."
    )
    yield "embedding_scaled_with_width", scaled, text
    readouts = e.groups(Role.OUTPUT) or [e.known.group_of_weight[path] for path in e.known.tied]
    vanish = [g for g in readouts if e.verdicts("width", g)[1] == VANISHES]
    text = (
        "outputs vanish with width when the readout trains, though its updates are right, so its product has another "
        "factor besides 1/m, such as 1/sqrt(D): keep rule.readout_multiplier(m) alone."
    )
    yield "readout_scaled_twice", vanish, text
