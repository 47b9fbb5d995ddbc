"""TP6's phase diagram: stability, faithfulness and feature diversity of (alpha, gamma)."""

from __future__ import annotations

import dataclasses
import math

from depthmup_flax.util.errors import require_number


@dataclasses.dataclass(frozen=True)
class Classification:
    """What TP6's claims say about (alpha, gamma). ``None``: the claim's premise does not hold."""

    alpha: float
    gamma: float
    stable_at_init: bool  # Claim 7.1: alpha >= 1/2
    stable_in_training: bool | None  # Claim 7.2: alpha + gamma >= 1
    nontrivial: bool | None  # Claim 7.2: alpha + gamma <= 1
    faithful_at_init: bool | None  # Claim 7.3: alpha >= 1/2
    faithful_in_training: bool | None  # Claim 7.3: alpha <= 1
    redundant: bool | None  # Claims 7.4, 7.5
    feature_diversity_exponent: float | None  # kappa of Definition 7.6; Claims 7.4, 7.5
    feature_learning: bool | None  # Definition 7.5: pre-activations change at order 1
    layerwise_linear: bool | None  # Definition 7.7 and Claim 7.6: alpha < 1

    def __str__(self) -> str:
        rows = [
            ("stable at initialization", self.stable_at_init, "Claim 7.1: alpha >= 1/2"),
            ("stable during training", self.stable_in_training, "Claim 7.2: alpha + gamma >= 1"),
            ("nontrivial", self.nontrivial, "Claim 7.2: alpha + gamma <= 1"),
            ("faithful at initialization", self.faithful_at_init, "Claim 7.3: alpha >= 1/2"),
            ("faithful during training", self.faithful_in_training, "Claim 7.3: alpha <= 1"),
            ("redundant", self.redundant, "Claim 7.4: alpha in (1/2, 1]"),
            ("feature-diversity exponent", self.feature_diversity_exponent, "Claim 7.4, 7.5: 1/2 only at alpha = 1/2"),
            ("feature learning", self.feature_learning, "Definition 7.5: min(gamma, alpha + gamma - 1) = 0"),
            ("layerwise linear", self.layerwise_linear, "Claim 7.6: alpha < 1"),
        ]
        words = {"True": "yes", "False": "no", "None": "claim does not apply", "0.0": "0"}
        lines = [f"  {name:<28}{words.get(str(value), str(value)):<22}TP6 {claim}" for name, value, claim in rows]
        return "\n".join([f"alpha = {self.alpha:g}, gamma = {self.gamma:g}", *lines])


def classify(alpha: float, gamma: float) -> Classification:
    """Places (alpha, gamma) in TP6's phase diagram (Fig. 1; Claims 7.1-7.6), for block depth 1.

    Claim 7.2 presumes stability at initialization; 7.3-7.6 presume a stable and nontrivial parametrization, and 7.4
    faithfulness during training as well. Where a premise fails the field is ``None``.

    Feature learning is Definition 7.5 where features are stable at initialization: a step changes pre-activations by
    the larger of ``L^-gamma``, from their own weights, and ``L^(1 - alpha - gamma)``, from the stream, and that must be
    of order 1. By its letter alpha > 1 with gamma = 0 has it, although outputs stand still. Layerwise linear: a block's
    output is to first order linear in what training adds to its weights; the network as a whole is not.
    """
    require_number("alpha", alpha)
    require_number("gamma", gamma)
    at_least = lambda x, bound: x > bound or math.isclose(x, bound, abs_tol=1e-9)
    total = alpha + gamma
    stable_at_init = at_least(alpha, 0.5)
    stable_in_training = at_least(total, 1.0) if stable_at_init else None
    nontrivial = at_least(-total, -1.0) if stable_at_init else None
    applies = bool(stable_in_training and nontrivial)
    faithful_in_training = at_least(-alpha, -1.0) if applies else None
    diverse = at_least(-alpha, -0.5)
    return Classification(
        alpha=alpha,
        gamma=gamma,
        stable_at_init=stable_at_init,
        stable_in_training=stable_in_training,
        nontrivial=nontrivial,
        faithful_at_init=at_least(alpha, 0.5) if applies else None,
        faithful_in_training=faithful_in_training,
        redundant=(not diverse) if faithful_in_training else None,
        feature_diversity_exponent=(0.5 if diverse else 0.0) if faithful_in_training else None,
        feature_learning=math.isclose(min(gamma, total - 1), 0.0, abs_tol=1e-9) if stable_at_init else None,
        layerwise_linear=not at_least(alpha, 1.0) if applies else None,
    )
