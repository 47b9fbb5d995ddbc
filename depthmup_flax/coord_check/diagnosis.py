"""From wrong exponents to the layers at fault and the likely cause."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from depthmup_flax.coord_check.layer_names import Layers
from depthmup_flax.coord_check.table import BRANCHES, EVERYTHING, OUTPUT, Table
from depthmup_flax.coord_check.verdict import ATTENTION_SCALE, FEATURES, GROWS, NO_ANSWER, VANISHES, Quantity
from depthmup_flax.power_fits import BELOW_PRECISION, EXPLODES, ZERO
from depthmup_flax.rule.parametrization import WIDTH_RULES, Parametrization, Role

# Exponents of different causes differ by 1/2 or more; half of that separates them.
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
    """What a diagnosis is based on.

    Attributes:
      table: of all records.
      quantities: judged.
      rule: the parametrization in use.
      known: the layers of the networks.
    """

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

    def weights_of(self, groups: Container[str]) -> list[str]:
        """Paths of the weights in any of these groups."""
        return [path for path, group in self.known.group_of_weight.items() if group in groups]

    def weight_slope(self, axis: str, path: str) -> float:
        """Exponent of a parameter's initial root mean square; NaN if it starts at zero."""
        return self.table.fit(axis, EVERYTHING, "weight", path, 0).slope

    def excess_update_slope(self, axis: str, path: str) -> float:
        """Exponent of a parameter's first update, trained alone, minus TP6 Definition 6.1's ``n^-c L^-gamma``."""
        leaf = self.known.weights[path]
        if axis == "depth":
            expected = -self.rule.gamma if leaf.in_branch else 0.0
        else:
            expected = float(WIDTH_RULES[leaf.role].update_in) if self.rule.width == "mup" else 0.0
        return self.table.fit(axis, self.known.group_of_weight[path], "update", path, 1).slope - expected

    def growing_groups(self, axis: str) -> list[str]:
        """Groups that move features or outputs more, the larger the network."""
        return sorted({q.group for q in self.failed(axis, "change") if q.group not in (EVERYTHING, BRANCHES)})

    def groups_growing_outputs(self, axis: str, role: Role) -> list[str]:
        """Groups with weights of a role that move the outputs more, the larger the network."""
        known = self.known
        with_role = {known.group_of_weight[path] for path, leaf in known.weights.items() if leaf.role is role}
        return [g for g in self.growing_groups(axis) if g in with_role and self.failed(axis, "change", g, OUTPUT)]

    def mean_takes_over(self, name: str) -> bool:
        """Whether an activation's mean over features dominates it in the deepest network, and less so in shallow ones.

        A branch that ends in a ReLU, for example, only ever adds to the stream.
        """
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
    causes = []
    for name, (find_layers, text) in _MISTAKES.items():
        layers = tuple(find_layers(evidence))
        causes += [Cause(name, layers, text.format(rule=evidence.rule))] if layers else []
    return causes or [_without_known_mistake(failures)]


def _without_known_mistake(failures: Sequence[Quantity]) -> Cause:
    layers = tuple(sorted({q.name if q.group == EVERYTHING else q.group for q in failures}))
    verdicts = {q.verdict for q in failures}
    if BELOW_PRECISION in verdicts:
        text = (
            "some changes are below 1e-5 of the values that change, so rounding decides them: use a larger learning "
            "rate or more steps, or look for a tiny factor."
        )
        return Cause("below_precision", layers, text)
    if verdicts.issubset(NO_ANSWER):
        return Cause("unclear", layers, "the intervals are too wide for a verdict: add seeds or sizes.")
    text = (
        "no known mistake shows this pattern: look at the first of these layers, and try larger sizes (small ones are "
        "not asymptotic) or a smaller learning rate."
    )
    return Cause("unknown", layers, text)


# Each function below returns the layers that show a mistake, none if there is no sign of it.


def _unstable_depth(e: Evidence) -> Iterable[str]:
    unstable = e.rule.alpha < 0.5 or e.rule.alpha + e.rule.gamma < 1
    grows = e.failed("depth", "change") or (e.rule.alpha < 0.5 and e.failed("depth", "activation"))
    return [BRANCHES] if unstable and grows else []


def _no_width_rule(e: Evidence) -> Iterable[str]:
    return [EVERYTHING] if e.rule.width != "mup" and e.failed("width", "change") else []


def _lazy_rule(e: Evidence) -> Iterable[str]:
    return [FEATURES] if e.rule.gamma0_width_exponent < 0 and "width" in e.table.axes() else []


def _fixed_init(e: Evidence) -> Iterable[str]:
    hidden = [path for path, leaf in e.known.weights.items() if leaf.role is Role.HIDDEN]
    fails = e.failed("width", "activation")
    return [path for path in hidden if fails and e.weight_slope("width", path) > -CLEARLY]


def _shrinking_input(e: Evidence) -> Iterable[str]:
    inputs = [path for path, leaf in e.known.weights.items() if leaf.role is Role.INPUT]
    fails = e.rule.width == "mup" and any(not q.passed for q in e.quantities if q.axis == "width")
    return [path for path in inputs if fails and e.weight_slope("width", path) < -CLEARLY]


def _double_counted_init(e: Evidence) -> Iterable[str]:
    inside = [path for path, leaf in e.known.weights.items() if leaf.in_branch]
    return [path for path in inside if e.weight_slope("depth", path) < -CLEARLY]


def _branch_mean(e: Evidence) -> Iterable[str]:
    grows = e.failed("depth", "activation") or e.groups_growing_outputs("depth", Role.OUTPUT)
    if e.rule.alpha < 0.5 or not grows:
        return []
    return [name for name in e.table.activations("depth") if e.mean_takes_over(name)]


def _branch_multiplier(e: Evidence) -> Iterable[str]:
    if e.rule.alpha < 0.5 or _branch_mean(e):
        return []
    return [q.name for q in e.failed("depth", "activation")]


def _incomplete_branches(e: Evidence) -> Iterable[str]:
    """Parameters outside branches move features by order 1 at every depth unless the rule or the forward is wrong."""
    if e.rule.alpha < 0.5 or e.failed("depth", "activation"):
        return []
    return [group for group in e.growing_groups("depth") if group not in e.known.branch_groups]


def _unscaled_readout(e: Evidence) -> Iterable[str]:
    if e.rule.width != "mup":
        return []
    # Without a readout of its own, the network has a tied embedding, which is an input weight.
    has_readout = any(leaf.role is Role.OUTPUT for leaf in e.known.weights.values())
    groups = e.groups_growing_outputs("width", Role.OUTPUT if has_readout else Role.INPUT)
    return [group for group in groups if not e.failed("width", "change", group, FEATURES)]


def _attention_scale(e: Evidence) -> Iterable[str]:
    return [q.name for q in e.failed("width", ATTENTION_SCALE) if e.rule.width == "mup"]


def _large_updates_in_width(e: Evidence) -> Iterable[str]:
    groups = e.growing_groups("width") if e.rule.width == "mup" else []
    return [path for path in e.weights_of(groups) if e.excess_update_slope("width", path) > CLEARLY]


def _large_updates_in_depth(e: Evidence) -> Iterable[str]:
    groups = e.known.branch_groups
    if not e.failed("depth", "change", BRANCHES):
        groups = groups.intersection(e.growing_groups("depth"))
    return [path for path in e.weights_of(groups) if e.excess_update_slope("depth", path) > CLEARLY]


def _small_updates(axis: str, e: Evidence) -> Iterable[str]:
    groups = {q.group for q in e.quantities if (q.axis, q.kind, q.verdict) == (axis, "change", VANISHES)}
    return [path for path in e.weights_of(groups) if e.excess_update_slope(axis, path) < -CLEARLY]


# Name -> (layers that show the mistake, text of the `Cause`). Mistakes before training come first: they explain what is
# wrong after it.
_MISTAKES: Mapping[str, tuple[Callable[[Evidence], Iterable[str]], str]] = {
    "rule_not_stable_in_depth": (
        _unstable_depth,
        "alpha = {rule.alpha:g}, gamma = {rule.gamma:g} is unstable; depth needs alpha >= 1/2 (TP6 Claim 7.1) and "
        "alpha + gamma >= 1 (Claim 7.2): use 'depth_mup'.",
    ),
    "rule_without_width": (
        _no_width_rule,
        "the rule's width factors are 'standard', not 'mup': use 'depth_mup' or 'mup'.",
    ),
    "lazy_rule": (
        _lazy_rule,
        "gamma0 falls with width, so features stop moving (the lazy limit, B24 C.1): use gamma0_width_exponent=0.",
    ),
    "fixed_std_init": (
        _fixed_init,
        "hidden weights start with the same standard deviation at every width: use 1/sqrt(fan_in) (lecun_normal), or "
        "pass the parameters through rescale_init.",
    ),
    "input_init_falls_with_width": (
        _shrinking_input,
        "the initial values of input weights shrink with width (as nn.Embed's do): use the same standard deviation at "
        "every width, or pass the parameters through rescale_init, here network.rescaled(base_init, rule).",
    ),
    "double_counted_init": (
        _double_counted_init,
        "initial weights shrink with depth, and so does the branch multiplier, which counts depth twice: use the same "
        "standard deviation at every depth (no 1/sqrt(2 L)).",
    ),
    "branch_outputs_have_a_mean": (
        _branch_mean,
        "the outputs of the branches have a mean over features, and L of them add up to L^(1/2) in spite of the branch "
        "multiplier: end branches in weights instead of a ReLU, or subtract the mean (TP6 sec. 6.3).",
    ),
    "missing_branch_multiplier": (
        _branch_multiplier,
        "activations grow with depth before any step, so a residual branch is not multiplied by r^-{rule.alpha:g}, or "
        "is multiplied before a norm that cancels it: multiply its output by rule.residual_multiplier(r), or use "
        "ResidualBranch.",
    ),
    "in_branch_incomplete": (
        _incomplete_branches,
        "parameters that info places outside residual branches have an effect that grows with depth, so some are "
        "inside: let in_branch match all parameters of all branches.",
    ),
    "readout_not_scaled": (
        _unscaled_readout,
        "outputs grow with width when the readout trains, but features do not, so its product is not multiplied by "
        "1/m: use Readout, or multiply by rule.readout_multiplier(m).",
    ),
    "attention_scale": (
        _attention_scale,
        "attention logits grow with the head dimension d, so they are scaled by 1/sqrt(d): scale by "
        "rule.attention_scale(d, d_base), which is sqrt(d_base) / d.",
    ),
    "missing_width_update_factor": (
        _large_updates_in_width,
        "updates do not shrink with width as the rule says (hidden weights: 1/m for Adam): make the optimizer with "
        "depthmup(direction, info, rule, ...), and check the roles in param_table.",
    ),
    "missing_depth_update_factor": (
        _large_updates_in_depth,
        "updates inside branches do not shrink with depth as r^-gamma: make the optimizer with depthmup(direction, "
        "info, rule, ...), where info records them as in_branch with their depth_ratio.",
    ),
    **{
        f"updates_too_small_in_{axis}": (
            functools.partial(_small_updates, axis),
            f"updates shrink faster with {axis} than the rule says: look for a factor that is applied twice.",
        )
        for axis in ("width", "depth")
    },
}
