"""The causes that a check names, and what each means."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from depthmup_flax.rule.parametrization import Parametrization

# What is wrong and what to do, for each cause that `diagnose` names; {alpha} and {gamma} are those of the rule.
TEXTS = {
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
    "random_start_of_few_features": (
        "weights that map the width to a fixed number of features start at random, so in wide networks "
        "their product changes as width^1/2 (the gradient of the whole width follows their few directions): start them "
        "at zero, or with a standard deviation of 1/fan_in."
    ),
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


def named(name: str, layers: Sequence[str], rule: Parametrization) -> Cause:
    """The cause of this name in `TEXTS`."""
    exponents = {"alpha": f"{float(rule.alpha):g}", "gamma": f"{least_gamma(rule):g}"}
    return Cause(name, tuple(layers), TEXTS[name].format(**exponents))


def least_gamma(rule: Parametrization) -> float:
    """The smallest gamma of the layers of a branch."""
    return float(rule.gamma if rule.inner_gamma is None else min(rule.gamma, rule.inner_gamma))
