"""TP6's plane of (alpha, gamma), measured on finite networks (TP6 Fig. 1, Claims 7.1 to 7.5).

    python -m depthmup_flax.limits --config=configs/limits/phase_diagram.py --workdir=runs/phase_diagram

Claim: initial features are stable over depth where alpha >= 1/2; steps then change them by depth^(1 - alpha - gamma);
on the line alpha + gamma = 1, pre-activations grow where alpha > 1, and features over depth are as rough as Brownian
motion only at alpha = 1/2. 2 minutes on two cores.
"""

from ml_collections import ConfigDict

from depthmup_flax.limits import limits_config
from depthmup_flax.sweep import at_scale


def get_config(scale: str = "cpu") -> ConfigDict:
    """Growth over depth at each point of the plane, and paths over depth along the line alpha + gamma = 1."""
    return limits_config(
        "phase_diagram",
        title="Growth over depth in the plane of (alpha, gamma) (TP6 Fig. 1)",
        scale=scale,
        seed=0,
        seeds=at_scale(scale, smoke=2, cpu=4, gpu=8),
        nonlinearity="relu",
        optimizer="adam",  # or sgd, or any entrywise optax direction
        branch_multiplier=1.0,  # a L^-alpha: the base depth is 1
        width=at_scale(scale, smoke=16, cpu=64, gpu=256),
        examples=8,  # random inputs and targets, one batch
        alphas=at_scale(scale, smoke=(0.25, 0.5, 1.0), other=(0.0, 0.25, 0.5, 0.75, 1.0, 1.25)),
        gammas=at_scale(scale, smoke=(0.0, 0.5), other=(-0.25, 0.0, 0.25, 0.5, 0.75, 1.0)),
        depths=at_scale(scale, smoke=(8, 16, 32), cpu=(32, 64, 128, 256), gpu=(32, 64, 128, 256, 512, 1024)),
        learning_rate=0.01,  # small, so that changes are linear in it
        steps=5,
        path_alphas=at_scale(scale, smoke=(0.5, 1.0), other=(0.5, 0.625, 0.75, 0.875, 1.0)),
        path_depths=at_scale(scale, smoke=(32,), cpu=(32, 128, 512), gpu=(32, 128, 512, 2048)),
        fractions=at_scale(scale, smoke=(1 / 8, 1 / 4), other=(1 / 32, 1 / 16, 1 / 8, 1 / 4)),
        path_learning_rate=0.05,  # large enough for outputs to approach the targets
        path_steps=at_scale(scale, smoke=10, other=100),
    )
