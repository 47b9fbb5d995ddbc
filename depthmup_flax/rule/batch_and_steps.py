"""Hyperparameters of a run with another batch size or another number of steps.

With ``k`` the ratio of batch sizes, target to proxy, and ``d`` the ratio of examples (batch size times steps):

=============== ======================================== ==============================================================
hyperparameter  factor                                   source
=============== ======================================== ==============================================================
learning rate   ``k^batch_exponent d^duration_exponent`` SGD: k (arXiv:1706.02677); Adam: k^(1/2) (arXiv:2205.10287).
                                                         Duration: d^(-1/4) without weight decay, measured
                                                         (reproduction/pages/batch_and_steps.md); d^0 with it
                                                         (published sweeps, reproduction/public)
1 - beta        ``k``: the same number of examples       arXiv:2205.10287. SGD's momentum too, at the same
                                                         ``learning_rate / (1 - momentum)``
epsilon         ``k^(-1/2)``                             arXiv:2205.10287: where noise dominates, gradients have the
                                                         size ``batch_size^(-1/2)``
eta * lambda    ``k``: the same number of examples       arXiv:2405.13698: AdamW forgets in ``1 / (eta lambda)`` steps
warm-up         ``steps``: the same part of the run      convention
=============== ======================================== ==============================================================

With these powers of k, runs follow the same stochastic differential equation at equal numbers of examples: an
approximation for small steps, up to the critical batch size, where noise no longer dominates gradients.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping

from depthmup_flax.util.errors import InputError, require_number
from depthmup_flax.util.table import Table

# The largest factors, up or down, and the fewest steps of a larger batch size at which the rule held in
# reproduction/pages/batch_and_steps.md.
MEASURED_BATCH_FACTOR, MEASURED_DURATION_FACTOR, MEASURED_STEPS = 8, 8, 150
# Exponents of the best rate over the number of examples with weight decay, of a small residual MLP and of published
# transformers (reproduction/public), and the factor of examples from which a kept rate is said to be uncertain.
DECAYED_DURATIONS, UNCERTAIN_DURATION_FACTOR = (-0.35, 0.0), 2


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """What depends on batch size and steps. ``momentum`` is SGD's; ``b1``, ``b2`` and ``eps`` are Adam's."""

    learning_rate: float  # eta, the peak of the schedule
    batch_size: int  # examples a step
    steps: int
    warmup_steps: int = 0
    weight_decay: float = 0.0  # lambda: a step removes eta * lambda
    momentum: float = 0.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        for name in ("batch_size", "steps"):
            require_number(name, getattr(self, name), least=1, whole=True)
        below = {"momentum": 1, "b1": 1, "b2": 1, "warmup_steps": self.steps}
        for name, value in vars(self).items():
            require_number(name, value, least=0, below=below.get(name, math.inf))
        require_number("learning_rate", self.learning_rate, above=0)


@dataclasses.dataclass(frozen=True)
class OptimizerRule:
    """How the learning rate changes, and which of the optimizer's own hyperparameters do."""

    batch: float  # the rate follows k to this power: from the stochastic differential equation
    duration: float  # and d to this power, without weight decay: measured
    averages: tuple[str, ...]
    eps: bool = False

    def duration_of(self, tuned: Hyperparameters) -> float:
        """The power of d that the rate follows: none with weight decay.

        Decay is no reason for that, but the published sweeps have it: in two of three, any other power than 0 costs
        more than changing nothing, in the third -1/5 fits, and in small networks -1/3, with decay as without it.
        """
        return 0.0 if tuned.weight_decay else self.duration


SGD = OptimizerRule(batch=1.0, duration=-0.25, averages=("momentum",))
ADAM = OptimizerRule(batch=0.5, duration=-0.25, averages=("b1", "b2"), eps=True)
OPTIMIZER_RULES: Mapping[str, OptimizerRule] = {"sgd": SGD, "momentum": SGD, "adam": ADAM, "adamw": ADAM, "nadam": ADAM}


def rescaled_hyperparameters(
    tuned: Hyperparameters, *, batch_size: int | None = None, steps: int | None = None, optimizer: str = "adam"
) -> Hyperparameters:
    """The hyperparameters of a run with another batch size or number of steps, from tuned ones.

    Args:
      tuned: with the batch size and steps at which they were tuned.
      batch_size: the target's; default: the same.
      steps: the target's; default: as many as give the same number of examples.
      optimizer: a name of `OPTIMIZER_RULES`: sgd, momentum, adam, adamw, nadam.

    Warns:
      UserWarning: each of `concerns`, such as a factor beyond those that were measured.

    Raises:
      InputError: a value is out of range, or the optimizer has no known rule.
    """
    if not isinstance(tuned, Hyperparameters):
        raise InputError(f"tuned is {tuned!r}: use dm.Hyperparameters(learning_rate=..., batch_size=..., steps=...).")
    rule = _rule_of(optimizer)
    batch_size = tuned.batch_size if batch_size is None else batch_size
    require_number("batch_size", batch_size, least=1, whole=True)
    if steps is None:
        steps = max(1, round(tuned.steps * tuned.batch_size / batch_size))
    require_number("steps", steps, least=1, whole=True)
    k, d = _ratios(tuned, batch_size, steps)
    effective = k**rule.batch * d ** rule.duration_of(tuned)  # of eta, or of eta / (1 - momentum)
    averages = {name: max(0.0, _beta(getattr(tuned, name), k)) for name in rule.averages}
    momentum = averages.get("momentum", tuned.momentum)
    rate = tuned.learning_rate * effective * (1 - momentum) / (1 - tuned.momentum)
    warmup = round(tuned.warmup_steps / (k / d))
    target = dataclasses.replace(
        tuned,
        batch_size=batch_size,
        steps=steps,
        learning_rate=rate,
        weight_decay=tuned.weight_decay * k * tuned.learning_rate / rate,
        warmup_steps=min(max(warmup, 1 if tuned.warmup_steps else 0), steps - 1),
        eps=tuned.eps / math.sqrt(k) if rule.eps else tuned.eps,
        **averages,
    )
    for sentence in concerns(tuned, target, optimizer):
        warnings.warn(sentence, stacklevel=2)
    return target


_CRITICAL = ", and above the critical batch size the best rate grows more slowly"


def concerns(tuned: Hyperparameters, target: Hyperparameters, optimizer: str = "adam") -> list[str]:
    """Sentences on where the rule cannot be followed, or has not been measured."""
    k, d = _ratios(tuned, target.batch_size, target.steps)
    sentences = []
    for what, ratio, most in (
        ("batch size", k, MEASURED_BATCH_FACTOR),
        ("number of examples", d, MEASURED_DURATION_FACTOR),
    ):
        if max(ratio, 1 / ratio) > most:
            sentences.append(
                f"the {what} is {max(ratio, 1 / ratio):.3g} times {'larger' if ratio > 1 else 'smaller'}, but the rule "
                f"was measured up to {most}{_CRITICAL * (what == 'batch size' and k > 1)}: "
                "tune a proxy nearer to the target's."
            )
    if tuned.weight_decay and max(d, 1 / d) >= UNCERTAIN_DURATION_FACTOR:
        low, high = DECAYED_DURATIONS
        sentences.append(
            f"the number of examples is {d:.3g} times the tuned one and the rate stays: with weight decay, best rates "
            f"follow powers of it from {low:g}, in small networks, to {high:g}, in published transformers. "
            f"Compare with a rate times {d**low:.2g}."
        )
    if k > 1 and target.steps < MEASURED_STEPS:
        sentences.append(
            f"the larger batch size leaves {target.steps} steps, but the rule held down to {MEASURED_STEPS} in our "
            "measurements: below, stability limits the best rate. Use more steps or a smaller batch size."
        )
    for name in _rule_of(optimizer).averages:
        if (beta := _beta(getattr(tuned, name), k)) < 0:
            sentences.append(
                f"{name} would be {beta:.3g} and is set to 0: a step has more "
                f"examples than the average had. Use a smaller batch size, or a larger {name} for the proxy."
            )
    removed = target.learning_rate * target.weight_decay
    if removed > 1:
        sentences.append(
            f"a step would remove {removed:.3g} of each weight (learning rate times weight decay): use a smaller batch "
            "size or weight decay."
        )
    return sentences


def rescaling_table(tuned: Hyperparameters, target: Hyperparameters, optimizer: str = "adam") -> str:
    """Each hyperparameter before and after, with the reason; then `concerns`."""
    warned = [f"Warning: {text}" for text in concerns(tuned, target, optimizer)]
    rule, (k, d) = _rule_of(optimizer), _ratios(tuned, target.batch_size, target.steps)
    kept = "the same number of examples"
    momentum = ", and (1 - momentum)" if target.momentum != tuned.momentum else ""
    over_examples = "; kept over examples, for weight decay" if tuned.weight_decay else f" d^{rule.duration:g}"
    reasons = {
        "batch_size": f"k = {k:.4g}",
        "steps": f"d = {d:.4g}, the ratio of examples",
        "learning_rate": f"times k^{rule.batch:g}{over_examples}{momentum}",
        "warmup_steps": "the same part of the run",
        "weight_decay": f"1 / (learning rate * decay): {kept}",
        **{name: f"1 / (1 - {name}): {kept}" for name in rule.averages},
        **({"eps": "times k^-0.5, as gradient noise"} if rule.eps else {}),
    }
    rows = []
    for name, why in reasons.items():
        before, after = getattr(tuned, name), getattr(target, name)
        if before or after:
            short = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in (before, after))
            rows.append((name, *short, why))
    table = Table(("", "tuned", "target", "why"), rows, "<>><")
    return "\n".join([*table.lines, *warned])


def _rule_of(optimizer: str) -> OptimizerRule:
    if optimizer not in OPTIMIZER_RULES:
        raise InputError(f"optimizer is {optimizer!r}, of no known rule: use one of {', '.join(OPTIMIZER_RULES)}.")
    return OPTIMIZER_RULES[optimizer]


def _ratios(tuned: Hyperparameters, batch_size: int, steps: int) -> tuple[float, float]:
    """k and d."""
    k = batch_size / tuned.batch_size
    return k, k * steps / tuned.steps


def _beta(beta: float, k: float) -> float:
    """Beta whose average covers the same number of examples; below 0 if a step has more."""
    return 1 - (1 - beta) * k if beta else 0.0
