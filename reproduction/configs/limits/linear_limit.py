"""Linear residual networks in training on images against theory, over width and depth (TP6 Fig. 8 and 9, section 10.1).

    python -m reproduction.limits --config=reproduction/configs/limits/linear_limit.py --workdir=runs/linear_limit
    ... --config.data.name=tfds:mnist                   # the paper's set, prepared; or folder:DIR, see docs/input.md

Claim: root mean squares of layers after 1, 5 and 10 steps approach theory at their depth as n^-1 in square error, and
theory approaches infinite depth as L^-1. 2.5 minutes on two cores, with MNIST.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale
from depthmup_flax.data import DATA_DEFAULTS
from reproduction.limits import limits_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """Theory over depth; networks of depth 64 over width, and of one width over some depths."""
    return limits_config(
        "linear_limit",
        title="Linear residual networks in training, one image a step, against theory (TP6 Fig. 8 and 9)",
        scale=scale,
        seed=0,  # of initial weights and data
        data=dict(DATA_DEFAULTS),  # the images: by default the bundled digits
        learning_rate=0.3,  # eta_0: features move within 10 steps, and training does not diverge
        gamma0=1.0,  # feature-learning strength
        # steps of training after which networks are compared with theory
        steps=at_scale(scale, smoke=(1, 3), other=(1, 5, 10)),
        depth=at_scale(scale, smoke=8, other=64),  # depth of the networks whose width varies
        # widths of the networks of that depth
        widths=at_scale(
            scale,
            smoke=(8, 16, 32),
            cpu=(64, 128, 256, 512, 1024),
            gpu=tuple(2**k for k in range(7, 14)),
            paper=tuple(2**k for k in range(7, 12)),  # the paper has up to 2^13, whose training takes 70 GB
        ),
        # depths at which theory is computed
        theory_depths=at_scale(scale, smoke=(4, 8), other=(16, 32, 64, 128, 256, 512)),
        # width of the networks whose depth varies
        network_width=at_scale(scale, smoke=32, cpu=256, gpu=1024, paper=256),
        # depths of the networks of network_width
        network_depths=at_scale(
            scale, smoke=(8,), cpu=(16, 32, 64, 128), gpu=(16, 32, 64, 128, 256, 512), paper=(16, 256)
        ),
        seeds=16,  # networks at each width and depth
        lanes=at_scale(scale, smoke=16, other=1),  # networks trained at a time
    )
