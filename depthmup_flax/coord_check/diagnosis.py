"""From wrong exponents to the layers at fault and the likely cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Sequence

from depthmup_flax.coord_check.layer_names import Layers
from depthmup_flax.coord_check.recorded_sizes import BRANCHES, EVERYTHING, OUTPUT, Table
from depthmup_flax.coord_check.verdict import ATTENTION_SCALE, FEATURES, GROWS, UNCLEAR, VANISHES, Quantity
from depthmup_flax.power_fits import BELOW_PRECISION, EXPLODES, ZERO
from depthmup_flax.rule.parametrization import WIDTH_RULES, Parametrization, Role

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
    """What a diagnosis is based on: all records, the judged quantities, the rule in use, the layers of the networks."""

    table: Table
    quantities: Sequence[Quantity]
    rule: Parametrization
    known: Layers

    def failed(self, axis: str, kind: str, group: str | None = None, name: str | None = None) -> list[Quantity]:
        """Quantities that grow or explode."""
        return [
            q
            for q in self.quantities
            if (q.axis, q.kind) == (axis, kind)
            and q.verdict in (GROWS, EXPLODES)
            and group in (None, q.group)
            and name in (None, q.name)
        ]

    def weights(self, role: Role) -> list[str]:
        """Paths of the weights of a role."""
        return [path for path, leaf in self.known.weights.items() if leaf.role is role]

    def weight_slope(self, axis: str, path: str) -> float:
        """Exponent of a parameter's initial root mean square; NaN if it starts at zero."""
        return self.table.fit(axis, EVERYTHING, "weight", path, 0).slope

    def wrong_updates(self, axis: str, groups: Container[str], sign: int) -> list[str]:
        """Weights of these groups whose first update, trained alone, grows (1) or falls (-1) faster than it should.

        It should follow ``n^-c L^-gamma`` (TP6 Definition 6.1).
        """
        wrong = []
        for path, leaf in self.known.weights.items():
            group, expected = self.known.group_of_weight[path], 0.0
            if axis == "depth" and leaf.in_branch:
                expected = -self.rule.gamma
            elif axis == "width" and self.rule.width == "mup":
                expected = float(WIDTH_RULES[leaf.role].update_in)
            if group in groups and sign * (self.table.fit(axis, group, "update", path, 1).slope - expected) > _CLEARLY:
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
    """The causes that the evidence supports, the most basic first; a cause that says so if none is known."""
    failures = [q for q in evidence.quantities if not q.passed]
    if not failures:
        return []
    if any((q.kind, q.group, q.verdict) == ("change", EVERYTHING, ZERO) for q in failures):
        text = "the outputs do not move when everything trains: set a learning rate above 0, without warm-up."
        return [Cause("nothing_trains", (OUTPUT,), text)]
    mistakes = (*_initial_mistakes(evidence), *_training_mistakes(evidence))
    if causes := [Cause(name, tuple(layers), text) for name, layers, text in mistakes if layers]:
        return causes
    layers = tuple(sorted({q.name if q.group == EVERYTHING else q.group for q in failures}))
    verdicts = {q.verdict for q in failures}
    if verdicts == {UNCLEAR}:
        return [Cause("unclear", layers, "the intervals are too wide for a verdict: add seeds or sizes.")]
    if BELOW_PRECISION in verdicts:
        text = (
            "some changes are below 1e-5 of the values that change, so rounding decides them: use a larger learning "
            "rate or more steps, or look for a tiny factor."
        )
        return [Cause("below_precision", layers, text)]
    text = (
        "no known mistake shows this pattern: look at the first of these layers, and try larger sizes (small ones are "
        "not asymptotic) or a smaller learning rate."
    )
    return [Cause("unknown", layers, text)]


# The fields of a `Cause`; no layers if there is no sign of it.
_Mistake = tuple[str, Sequence[str], str]


def _initial_mistakes(e: Evidence) -> Iterator[_Mistake]:
    """Mistakes in the rule, and those that show before training: they explain what is wrong after it."""
    rule, stable_start = e.rule, e.rule.alpha >= 0.5
    grows_with_depth = [q.name for q in e.failed("depth", "activation")]

    unstable = not stable_start or rule.alpha + rule.gamma < 1
    if unstable and (e.failed("depth", "change") or (not stable_start and grows_with_depth)):
        text = (
            f"alpha = {rule.alpha:g}, gamma = {rule.gamma:g} is unstable; depth needs alpha >= 1/2 (TP6 Claim 7.1) and "
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
    if e.failed("width", "activation"):
        fixed = [path for path in e.weights(Role.HIDDEN) if e.weight_slope("width", path) > -_CLEARLY]
        text = (
            "hidden weights start with the same standard deviation at every width: use 1/sqrt(fan_in) (lecun_normal), "
            "or pass the parameters through rescale_init."
        )
        yield "fixed_std_init", fixed, text
    if rule.width == "mup" and any(not q.passed for q in e.quantities if q.axis == "width"):
        shrinking = [path for path in e.weights(Role.INPUT) if e.weight_slope("width", path) < -_CLEARLY]
        text = (
            "the initial values of input weights shrink with width (as nn.Embed's do): use the same standard deviation "
            "at every width, or pass the parameters through rescale_init, here network.rescaled(base_init, rule)."
        )
        yield "input_init_falls_with_width", shrinking, text
    inside = [path for path, leaf in e.known.weights.items() if leaf.in_branch]
    counted = [path for path in inside if e.weight_slope("depth", path) < -_CLEARLY]
    text = (
        "initial weights shrink with depth, and so does the branch multiplier, which counts depth twice: use the same "
        "standard deviation at every depth (no 1/sqrt(2 L))."
    )
    yield "double_counted_init", counted, text
    if stable_start and (grows_with_depth or e.groups_growing_outputs("depth", Role.OUTPUT)):
        means = [name for name in e.table.activations["depth"] if e.mean_takes_over(name)]
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
        yield "missing_branch_multiplier", [] if means else grows_with_depth, text


def _training_mistakes(e: Evidence) -> Iterator[_Mistake]:
    """Mistakes that show in the changes by single groups of parameters."""
    growing = {axis: e.growing_groups(axis) for axis in ("width", "depth")}
    if e.rule.alpha >= 0.5 and not e.failed("depth", "activation"):
        # Parameters outside branches move features by order 1 at every depth unless the rule or the forward is wrong.
        outside = [group for group in growing["depth"] if group not in e.known.branch_groups]
        text = (
            "parameters that info places outside residual branches have an effect that grows with depth, so some are "
            "inside: let in_branch match all parameters of all branches."
        )
        yield "in_branch_incomplete", outside, text
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
        yield "attention_scale", [q.name for q in e.failed("width", ATTENTION_SCALE)], text
        text = (
            "updates do not shrink with width as the rule says (hidden weights: 1/m for Adam): make the optimizer with "
            "depthmup(direction, info, rule, ...), and check the roles in param_table."
        )
        yield "missing_width_update_factor", e.wrong_updates("width", growing["width"], 1), text
    branches = e.known.branch_groups
    if not e.failed("depth", "change", BRANCHES):
        branches = e.known.branch_groups.intersection(growing["depth"])
    text = (
        "updates inside branches do not shrink with depth as r^-gamma: make the optimizer with depthmup(direction, "
        "info, rule, ...), where info records them as in_branch with their depth_ratio."
    )
    yield "missing_depth_update_factor", e.wrong_updates("depth", branches, 1), text
    for axis in ("width", "depth"):
        vanishing = {q.group for q in e.quantities if (q.axis, q.kind, q.verdict) == (axis, "change", VANISHES)}
        text = f"updates shrink faster with {axis} than the rule says: look for a factor that is applied twice."
        yield f"updates_too_small_in_{axis}", e.wrong_updates(axis, vanishing, -1), text
