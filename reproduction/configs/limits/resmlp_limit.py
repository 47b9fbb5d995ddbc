"""The model that sweeps train, `ResMLP` in its default form, approaches its limit of infinite width and depth.

    python -m reproduction.limits --config=reproduction/configs/limits/resmlp_limit.py --workdir=runs/resmlp_limit

As limit_convergence.py, with the nonlinearity after the weights and the mean over features subtracted
(TP6 6.3), for which neither paper computes a limit in training. 19 minutes on two loaded cores.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale
from reproduction.limits import limits_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """Sizes, training and precision."""
    return limits_config(
        "resmlp_limit",
        title="Width and depth errors of the default residual MLP after five steps of SGD",
        scale=scale,
        seed=0,  # of initial weights and of Monte Carlo
        nonlinearities=("relu",),  # of the branches: relu, abs, erf, linear, gelu, tanh
        pre_nonlin=False,  # the nonlinearity comes after the weights, and branches have mean zero
        learning_rates=(0.6,),  # of SGD, for each nonlinearity; outputs move toward the labels
        steps=5,  # steps of SGD
        gamma0=1.0,  # feature-learning strength
        # widths of the networks
        widths=at_scale(scale, smoke=(8, 16), cpu=(16, 32, 64, 128), gpu=(16, 32, 64, 128, 256, 512)),
        # depths of the networks
        depths=at_scale(scale, smoke=(2, 4), cpu=(2, 4, 8), gpu=(2, 4, 8, 16, 32, 64)),
        # An ensemble of width N has this / N networks, so that ensembles of all widths take about as long.
        seeds_times_width=at_scale(scale, smoke=2**12, cpu=2**16, gpu=2**23),
        lanes=at_scale(scale, smoke=64, cpu=128, gpu=4096),  # networks trained at a time
        samples=at_scale(scale, smoke=2**10, cpu=2**17, gpu=2**23),  # samples of Monte Carlo, in all populations
        # the limit is extrapolated from half, once and twice this depth
        limit_depth=at_scale(scale, smoke=2, cpu=8, gpu=32),
    )
