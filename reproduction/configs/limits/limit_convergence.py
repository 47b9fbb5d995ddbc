"""Finite networks approach the computed limit of infinite width and depth (B24 Fig. 5, B.7).

    python -m reproduction.limits --config=reproduction/configs/limits/limit_convergence.py

Residual MLPs with ReLU, and linear ones, take five steps of SGD on three handwritten digits and predict a fourth. The
square error of their outputs splits into the variance over initial weights, as N^-1 at every depth, the error of the
mean at finite width, as N^-2, and the error of finite depth, as L^-2. `reproduction.theory.nonlinear_training`
computes the limit: by Monte Carlo for ReLU, exactly for linear networks. The paper has convolutional networks, and an
ensemble of the largest in place of the limit.

35 minutes on two loaded cores, ten of them for the theory of ReLU.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale
from reproduction.limits import limits_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """Sizes, training and precision."""
    return limits_config(
        "limit_convergence",
        title="Width and depth errors of residual MLPs after five steps of SGD (B24 Fig. 5, B.7)",
        scale=scale,
        seed=0,  # of initial weights and of Monte Carlo
        nonlinearities=at_scale(scale, smoke=("relu",), other=("relu", "linear")),  # of the branches: relu, linear
        pre_nonlin=True,  # the nonlinearity comes before the weights, as in B24
        # of SGD, for each nonlinearity; outputs move toward the labels
        learning_rates=at_scale(scale, smoke=(0.6,), other=(0.6, 0.3)),
        steps=5,  # steps of SGD
        gamma0=1.0,  # feature-learning strength
        # widths of the networks
        widths=at_scale(scale, smoke=(8, 16), cpu=(16, 32, 64, 128, 256), gpu=(16, 32, 64, 128, 256, 512)),
        # depths of the networks
        depths=at_scale(scale, smoke=(2, 4), cpu=(2, 4, 8, 16, 32), gpu=(2, 4, 8, 16, 32, 64)),
        # An ensemble of width N has this / N networks, so that ensembles of all widths take about as long.
        seeds_times_width=at_scale(scale, smoke=2**12, cpu=2**18, gpu=2**23),
        lanes=at_scale(scale, smoke=64, cpu=128, gpu=4096),  # networks trained at a time
        samples=at_scale(scale, smoke=2**10, cpu=2**19, gpu=2**23),  # samples of Monte Carlo, in all populations
        # the limit is extrapolated from half, once and twice this depth
        limit_depth=at_scale(scale, smoke=2, cpu=16, gpu=32),
    )
