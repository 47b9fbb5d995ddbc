"""TP6's plane of (alpha, gamma), measured on finite networks (TP6 Fig. 1, Claims 7.1 to 7.6).

    python -m reproduction.limits --config=reproduction/configs/limits/phase_diagram.py --workdir=runs/phase_diagram

Claim: initial features are stable over depth where alpha >= 1/2; steps then change them by depth^(1 - alpha - gamma);
on the line alpha + gamma = 1, pre-activations grow where alpha > 1, features over depth are as rough as Brownian motion
only at alpha = 1/2, and blocks become linear in what training adds to their weights below alpha = 1. 2 minutes on two
cores.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale
from reproduction.limits import limits_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """Growth over depth at each point of the plane, and paths over depth along the line alpha + gamma = 1."""
    return limits_config(
        "phase_diagram",
        title="Growth over depth in the plane of (alpha, gamma) (TP6 Fig. 1)",
        scale=scale,
        seed=0,  # of initial weights and data
        seeds=at_scale(scale, smoke=2, cpu=4, gpu=8),  # networks at each point
        nonlinearity="relu",  # of the branches: relu, abs, erf, linear, gelu, tanh
        optimizer="adam",  # sgd, adam, or any entrywise optax direction
        branch_multiplier=1.0,  # a L^-alpha: the base depth is 1
        width=at_scale(scale, smoke=16, cpu=64, gpu=256),  # width of the networks
        examples=8,  # random inputs and targets, one batch
        # alphas of the plane: branches are multiplied by depth^-alpha
        alphas=at_scale(scale, smoke=(0.25, 0.5, 1.0), other=(0.0, 0.25, 0.5, 0.75, 1.0, 1.25)),
        # gammas of the plane: updates are multiplied by depth^-gamma
        gammas=at_scale(scale, smoke=(0.0, 0.5), other=(-0.25, 0.0, 0.25, 0.5, 0.75, 1.0)),
        # depths over which growth is fitted
        depths=at_scale(scale, smoke=(8, 16, 32), cpu=(32, 64, 128, 256), gpu=(32, 64, 128, 256, 512, 1024)),
        learning_rate=0.01,  # small, so that changes are linear in it
        steps=5,  # steps of training before growth is measured
        # alphas of the paths on the line alpha + gamma = 1
        path_alphas=at_scale(scale, smoke=(0.5, 1.0), other=(0.5, 0.625, 0.75, 0.875, 1.0)),
        path_depths=at_scale(scale, smoke=(32,), cpu=(32, 128, 512), gpu=(32, 128, 512, 2048)),  # depths of the paths
        # distances between layers of a path, in units of the depth
        fractions=at_scale(scale, smoke=(1 / 8, 1 / 4), other=(1 / 32, 1 / 16, 1 / 8, 1 / 4)),
        path_learning_rate=0.05,  # large enough for outputs to approach the targets
        path_steps=at_scale(scale, smoke=10, other=100),  # steps of training before a path is measured
    )
