"""The tangent kernel of a ReLU residual MLP over angle, width and depth, in theory and in networks (B24 Fig. 6).

    python -m reproduction.limits --config=reproduction/configs/limits/ntk.py --workdir=runs/ntk

Claim: at infinite width the kernel of depth L approaches that of infinite depth as L^-2 in square error; a network's
kernel approaches theory at its depth as N^-1, with a constant that does not grow with depth. 3.5 minutes on two cores.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale
from reproduction.limits import limits_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """Theories, and ensembles at every width and depth."""
    return limits_config(
        "ntk",
        title="Tangent kernel of residual MLPs over width and depth (B24 Fig. 6)",
        scale=scale,
        seed=0,  # of initial weights
        nonlinearity="relu",  # of the branches: relu, abs, erf, linear, gelu, tanh
        branch_multiplier=1.0,  # a, the constant of every branch
        angles=33,  # of theory: angles between two inputs, from 0 to pi
        network_angles=9,  # of networks: a subset of the theory's angles
        # depths at which theory is computed
        theory_depths=at_scale(scale, smoke=(1, 2, 4), other=tuple(2**k for k in range(10))),
        # widths of the networks
        widths=at_scale(scale, smoke=(8, 16, 32), cpu=(32, 64, 128, 256), gpu=(64, 128, 256, 512, 1024)),
        # depths of the networks
        depths=at_scale(scale, smoke=(2,), cpu=(1, 2, 4, 8, 16, 32, 64), gpu=(1, 2, 4, 8, 16, 32, 64, 128)),
        seeds=at_scale(scale, smoke=16, cpu=512, gpu=2048),  # networks of the largest width; more of smaller ones
        lanes=at_scale(scale, smoke=16, cpu=8, gpu=32),  # networks computed at a time
    )
