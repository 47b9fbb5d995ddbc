"""Finite networks approach the limit of infinite width and depth: B24 Fig. 5 and B.7, with the limit computed.

    python -m depthmup_flax.limits --config=configs/limits/limit_convergence.py --workdir=runs/limit_convergence

Residual MLPs with ReLU, and linear ones, take five steps of SGD on three handwritten digits and predict a fourth. The
square error of their outputs splits into the variance over initial weights, 1/N whatever the depth, the error of the
mean at finite width, 1/N^2, and that of finite depth, 1/L^2. The limit is `depthmup_flax.theory.nonlinear_training`, by
Monte Carlo for ReLU, without error for linear networks. The paper has convolutional networks and, for want of the
limit, an ensemble of the largest in its place.

35 minutes on two cores that had other work; the theory of ReLU takes ten of them.
"""

from ml_collections import ConfigDict

from depthmup_flax.limits import limits_config
from depthmup_flax.sweep import at_scale


def get_config(scale: str = "cpu") -> ConfigDict:
    """Sizes, training and precision."""
    return limits_config(
        "limit_convergence",
        title="Width and depth errors of residual MLPs after five steps of SGD (B24 Fig. 5, B.7)",
        scale=scale,
        seed=0,
        nonlinearities=at_scale(scale, smoke=("relu",), other=("relu", "linear")),
        learning_rates=at_scale(scale, smoke=(0.6,), other=(0.6, 0.3)),  # of each: some way to the labels
        steps=5,
        gamma0=1.0,
        widths=at_scale(scale, smoke=(8, 16), cpu=(16, 32, 64, 128, 256), gpu=(16, 32, 64, 128, 256, 512)),
        depths=at_scale(scale, smoke=(2, 4), cpu=(2, 4, 8, 16, 32), gpu=(2, 4, 8, 16, 32, 64)),
        # Networks in an ensemble of width N: this / N, so that an ensemble takes about as long at any width.
        seeds_times_width=at_scale(scale, smoke=2**12, cpu=2**18, gpu=2**23),
        lanes=at_scale(scale, smoke=64, cpu=128, gpu=4096),  # networks trained at a time
        samples=at_scale(scale, smoke=2**10, cpu=2**19, gpu=2**23),  # of the theory's Monte Carlo, in all populations
        limit_depth=at_scale(
            scale, smoke=2, cpu=16, gpu=32
        ),  # the limit is extrapolated from half, once and twice this
    )
