"""From exponents that are wrong to the layers at fault and the likely cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from depthmup_flax.coord_check.measure import BRANCH_VECTORS, BRANCHES, EVERYTHING, OUTPUT
from depthmup_flax.coord_check.verdict import (
    ATTENTION_SCALE,
    FEATURES,
    GROWS,
    NO_ANSWER,
    VANISHES,
    Quantity,
    Table,
)
from depthmup_flax.power_fits import BELOW_PRECISION, EXPLODES, ZERO
from depthmup_flax.rule.parametrization import WIDTH_RULES, Parametrization, ParamInfo, Role

# Exponents of causes differ by 1/2 or more; half of that tells them apart.
CLEARLY = 0.25


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
    """What the rules below look at.

    Attributes:
      table: of all records.
      quantities: judged.
      rule: the parametrization in use.
      weights: collapsed path -> what the parameter is.
      group_of_weight: collapsed path -> the group in which it trains alone.
    """

    table: Table
    quantities: Sequence[Quantity]
    rule: Parametrization
    weights: Mapping[str, ParamInfo]
    group_of_weight: Mapping[str, str]

    def failed(self, axis: str, kind: str, group: str | None = None, name: str | None = None) -> list[Quantity]:
        """Quantities that grow or explode and must not."""
        return [
            q
            for q in self.quantities
            if (q.axis, q.kind) == (axis, kind)
            and q.verdict in (GROWS, EXPLODES)
            and group in (None, q.group)
            and name in (None, q.name)
        ]

    def weight_slope(self, axis: str, path: str) -> float:
        """Exponent of a parameter's initial root mean square; NaN if it starts at zero."""
        return self.table.fit(axis, EVERYTHING, "weight", path, 0).slope

    def update_slope(self, axis: str, path: str) -> float:
        """Exponent of the size of a parameter's first update, trained alone with its group."""
        return self.table.fit(axis, self.group_of_weight[path], "update", path, 1).slope

    def expected_update_slope(self, axis: str, path: str) -> float:
        """``n^-c L^-gamma``, as TP6 Definition 6.1 has it."""
        leaf = self.weights[path]
        if axis == "depth":
            return -self.rule.gamma if leaf.in_branch else 0.0
        return float(WIDTH_RULES[leaf.role].update_in) if self.rule.width == "mup" else 0.0

    def growing_groups(self, axis: str) -> list[str]:
        """Groups that move features or outputs more, the larger the network."""
        return sorted({q.group for q in self.failed(axis, "change") if q.group not in (EVERYTHING, BRANCHES)})

    def mean_takes_over(self, name: str) -> bool:
        """Whether an activation's mean over features is most of it in the deepest network, and less so in shallow ones.

        A branch that ends in a ReLU, say, only ever adds to the stream.
        """
        sizes = self.table.sizes("depth")
        means, all_of_it = (
            self.table.values("depth", EVERYTHING, quantity, name, 0) for quantity in ("mean", "activation")
        )
        if len(means) < len(sizes):
            return False
        shares = [sum(means[size]) / max(sum(all_of_it[size]), 1e-30) for size in (sizes[0], sizes[-1])]
        return shares[1] > max(0.7, 1.03 * shares[0])

    def growing_outputs(self, axis: str, role: Role) -> list[str]:
        """Groups with weights of a role that move the outputs more, the larger the network."""
        with_role = {self.group_of_weight[path] for path, leaf in self.weights.items() if leaf.role is role}
        return [g for g in self.growing_groups(axis) if g in with_role and self.failed(axis, "change", g, OUTPUT)]


def diagnose(evidence: Evidence) -> list[Cause]:
    """The causes that the evidence supports, the most basic first; one that says so if there is none."""
    if all(q.passed for q in evidence.quantities):
        return []
    if any((q.kind, q.group, q.verdict) == ("change", EVERYTHING, ZERO) for q in evidence.quantities):
        text = "the outputs do not move when everything trains: set a learning rate, without warm-up."
        return [Cause("nothing_trains", (OUTPUT,), text)]
    causes = [cause for rule in _RULES for cause in rule(evidence)]
    if causes:
        return causes
    failed = sorted({q.name if q.group == EVERYTHING else q.group for q in evidence.quantities if not q.passed})
    verdicts = {q.verdict for q in evidence.quantities if not q.passed}
    if BELOW_PRECISION in verdicts:
        text = (
            "some changes are below 1e-5 of what changes, which floating point numbers do not tell from none: use a "
            "larger learning rate or more steps, or look for a factor that is tiny."
        )
        return [Cause("below_precision", tuple(failed), text)]
    if verdicts.issubset(NO_ANSWER):
        return [Cause("unclear", tuple(failed), "the intervals are too wide to tell: add seeds or sizes.")]
    return [
        Cause(
            "unknown",
            tuple(failed),
            "no known mistake shows this pattern: look at the first of these layers, and at larger sizes (small ones "
            "are not asymptotic) or a smaller learning rate.",
        )
    ]


def _wrong_rule(e: Evidence) -> list[Cause]:
    found = []
    if (
        "depth" in e.table.axes()
        and e.rule.alpha < 0.5
        and (e.failed("depth", "activation") or e.failed("depth", "change"))
    ):
        text = f"alpha = {e.rule.alpha:g} is below 1/2 (TP6 Claim 7.1): use 'depth_mup'."
        found.append(Cause("rule_not_stable_in_depth", (BRANCHES,), text))
    elif "depth" in e.table.axes() and e.rule.alpha + e.rule.gamma < 1 and e.failed("depth", "change"):
        text = f"alpha + gamma = {e.rule.alpha + e.rule.gamma:g} is below 1 (TP6 Claim 7.2): use 'depth_mup'."
        found.append(Cause("rule_not_stable_in_depth", (BRANCHES,), text))
    if "width" in e.table.axes() and e.rule.width != "mup" and e.failed("width", "change"):
        text = "the rule has no factors for width ('standard', muP's are 'mup'): use 'depth_mup' or 'mup'."
        found.append(Cause("rule_without_width", (EVERYTHING,), text))
    if e.rule.gamma0_width_exponent < 0 and "width" in e.table.axes():
        text = (
            "gamma0 falls with width, so features stop moving (the lazy limit, B24 C.1): use gamma0_width_exponent=0."
        )
        found.append(Cause("lazy_rule", (FEATURES,), text))
    return found


def _fixed_init(e: Evidence) -> list[Cause]:
    if "width" not in e.table.axes() or not e.failed("width", "activation"):
        return []
    layers = tuple(
        p for p, leaf in e.weights.items() if leaf.role is Role.HIDDEN and e.weight_slope("width", p) > -CLEARLY
    )
    text = (
        "hidden weights start with the same standard deviation at every width: use 1/sqrt(fan_in) (lecun_normal), or "
        "pass the parameters through rescale_init."
    )
    return [Cause("fixed_std_init", layers, text)] if layers else []


def _shrinking_input(e: Evidence) -> list[Cause]:
    if e.rule.width != "mup" or all(q.passed for q in e.quantities if q.axis == "width"):
        return []
    layers = tuple(
        p for p, leaf in e.weights.items() if leaf.role is Role.INPUT and e.weight_slope("width", p) < -CLEARLY
    )
    text = (
        "input weights start smaller, the wider the network (as nn.Embed's do): give them one standard deviation at "
        "every width, or pass the parameters through rescale_init, which is network.rescaled(base_init, rule) here."
    )
    return [Cause("input_init_falls_with_width", layers, text)] if layers else []


def _double_counted_init(e: Evidence) -> list[Cause]:
    if "depth" not in e.table.axes():
        return []
    layers = tuple(p for p, leaf in e.weights.items() if leaf.in_branch and e.weight_slope("depth", p) < -CLEARLY)
    text = (
        "initial weights shrink with depth, and so does the branch multiplier: that counts depth twice; use the same "
        "standard deviation at every depth (no 1/sqrt(2 L))."
    )
    return [Cause("double_counted_init", layers, text)] if layers else []


def _branch_mean(e: Evidence) -> list[Cause]:
    if "depth" not in e.table.axes() or e.rule.alpha < 0.5:
        return []
    layers = tuple(name for name in e.table.activations("depth") if e.mean_takes_over(name))
    text = (
        "the mean over features adds up with depth: each branch's output has one, and L of them make L^(1/2) in spite "
        "of the branch multiplier; let branches end in weights instead of a ReLU, or subtract the mean (TP6 sec. 6.3)."
    )
    grows = e.failed("depth", "activation") or e.growing_outputs("depth", Role.OUTPUT)
    return [Cause("branch_outputs_have_a_mean", layers, text)] if layers and grows else []


def _branch_multiplier(e: Evidence) -> list[Cause]:
    grown = e.failed("depth", "activation") if "depth" in e.table.axes() else []
    if not grown or e.rule.alpha < 0.5 or _branch_mean(e):
        return []
    text = (
        f"activations grow with depth before any step: a residual branch is not multiplied by r^-{e.rule.alpha:g}, or "
        "is before a norm that cancels it; multiply its output by rule.residual_multiplier(r), or use ResidualBranch."
    )
    return [Cause("missing_branch_multiplier", tuple(q.name for q in grown), text)]


def _incomplete_branches(e: Evidence) -> list[Cause]:
    """What is outside moves features by order one at every depth, unless the rule or the forward pass is wrong."""
    if "depth" not in e.table.axes() or e.rule.alpha < 0.5 or e.failed("depth", "activation"):
        return []
    inside = {e.group_of_weight[path] for path, leaf in e.weights.items() if leaf.in_branch} | {BRANCH_VECTORS}
    layers = tuple(group for group in e.growing_groups("depth") if group not in inside)
    text = (
        "parameters outside residual branches, by info, have an effect that grows with depth: some are inside; let "
        "in_branch match all parameters of all branches."
    )
    return [Cause("in_branch_incomplete", layers, text)] if layers else []


def _readout(e: Evidence) -> list[Cause]:
    if "width" not in e.table.axes() or e.rule.width != "mup":
        return []
    # Without a readout of its own, the network has a tied embedding, which is an input weight.
    role = Role.OUTPUT if any(leaf.role is Role.OUTPUT for leaf in e.weights.values()) else Role.INPUT
    layers = [g for g in e.growing_outputs("width", role) if not e.failed("width", "change", g, FEATURES)]
    text = (
        "outputs grow with width when the readout trains, features do not: its product is not multiplied by 1/m; use "
        "Readout, or multiply by rule.readout_multiplier(m)."
    )
    return [Cause("readout_not_scaled", tuple(layers), text)] if layers else []


def _attention(e: Evidence) -> list[Cause]:
    layers = tuple(q.name for q in e.failed("width", ATTENTION_SCALE))
    text = (
        "attention logits grow with the head dimension d: they are scaled by 1/sqrt(d); scale by "
        "rule.attention_scale(d, d_base), which is sqrt(d_base) / d."
    )
    return [Cause("attention_scale", layers, text)] if layers and e.rule.width == "mup" else []


def _update_factor(axis: str) -> Callable[[Evidence], list[Cause]]:
    texts = {
        "width": (
            "missing_width_update_factor",
            "updates do not shrink with width as the rule says (hidden weights, 1/m for Adam): make the optimizer with "
            "depthmup(direction, info, rule, ...), and look at the roles in param_table.",
        ),
        "depth": (
            "missing_depth_update_factor",
            "updates inside branches do not shrink with depth as r^-gamma: make the optimizer with depthmup(direction, "
            "info, rule, ...), where info records them as in_branch with their depth_ratio.",
        ),
    }

    def rule(e: Evidence) -> list[Cause]:
        if axis not in e.table.axes() or (axis == "width" and e.rule.width != "mup"):
            return []
        growing = set(e.growing_groups(axis))
        inside = {e.group_of_weight[path] for path, leaf in e.weights.items() if leaf.in_branch}
        if axis == "depth":
            growing = inside if e.failed("depth", "change", BRANCHES) else growing & inside
        layers = tuple(
            path
            for path, group in e.group_of_weight.items()
            if group in growing and e.update_slope(axis, path) > e.expected_update_slope(axis, path) + CLEARLY
        )
        name, text = texts[axis]
        return [Cause(name, layers, text)] if layers else []

    return rule


def _small_updates(e: Evidence) -> list[Cause]:
    found = []
    for axis in e.table.axes():
        still = {q.group for q in e.quantities if q.axis == axis and q.kind == "change" and q.verdict == VANISHES}
        layers = tuple(
            path
            for path, group in e.group_of_weight.items()
            if group in still and e.update_slope(axis, path) < e.expected_update_slope(axis, path) - CLEARLY
        )
        text = f"updates shrink faster with {axis} than the rule says: look for a factor that is applied twice."
        found += [Cause(f"updates_too_small_in_{axis}", layers, text)] if layers else []
    return found


# The order is that of a network: what is wrong before training explains what is wrong after it.
_RULES: tuple[Callable[[Evidence], list[Cause]], ...] = (
    _wrong_rule,
    _fixed_init,
    _shrinking_input,
    _double_counted_init,
    _branch_mean,
    _branch_multiplier,
    _incomplete_branches,
    _readout,
    _attention,
    _update_factor("width"),
    _update_factor("depth"),
    _small_updates,
)
