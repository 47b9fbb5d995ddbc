"""The training curve that theory computes, with no fitted parameter, against networks of many widths and depths.

    python -m reproduction.limits --config=reproduction/configs/limits/training_curve.py --workdir=runs/training_curve
    ... --config.data.name=tfds:cifar10                 # once prepared; or folder:DIR, see docs/input.md

Residual MLPs with ReLU, all layers trained, take full-batch steps of SGD on a few images. B24's mean field theory
computes their outputs at infinite width and depth. Claim: the square error of a network is a sum of two parts, of order
1/N and of order L^-2, so the same curve serves every large network. 27 minutes on two loaded cores, 22 of them for
the theory.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale
from depthmup_flax.data import DATA_DEFAULTS
from reproduction.limits import limits_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """Sizes, training and precision."""
    return limits_config(
        "training_curve",
        title="The training curve of infinite width and depth against networks of finite ones",
        scale=scale,
        seed=0,  # of initial weights, data and Monte Carlo
        data=dict(DATA_DEFAULTS),  # the images: by default the bundled digits
        images=at_scale(scale, smoke=3, other=8),  # of two groups of classes; all are in every batch
        nonlinearity="relu",  # of the branches: relu, abs, erf, linear, gelu, tanh
        steps=at_scale(scale, smoke=3, other=10),  # steps of SGD
        learning_rate=0.5,  # eta_0
        gamma0=1.0,  # feature-learning strength
        # widths of the networks
        widths=at_scale(scale, smoke=(8, 16, 32), other=(32, 64, 128, 256, 512, 1024)),
        # depths of the networks
        depths=at_scale(scale, smoke=(2, 4, 8), other=(4, 8, 16, 32, 64)),
        seeds=at_scale(scale, smoke=16, cpu=32, gpu=256),  # networks of each size
        lanes=at_scale(scale, smoke=16, cpu=4, gpu=32),  # networks trained at a time
        # the limit is extrapolated from half, once and twice this depth
        limit_depth=at_scale(scale, smoke=2, cpu=16, gpu=32),
        populations=at_scale(scale, smoke=4, cpu=32, gpu=256),  # independent repetitions of Monte Carlo
    )
