"""How features and gradients of nearby layers differ in trained residual MLPs (TP6 Fig. 17 to 19, 8.1, 8.3).

    python -m reproduction.limits --config=reproduction/configs/limits/diversity.py --workdir=runs/diversity
        --config.data.name=tfds:cifar10

Claim: the distance of features eps L layers apart grows as eps^(1/2) under Depth-muP, at every depth; with alpha = 1
it approaches eps as depth grows; with the absolute value its slope is below ReLU's. The last effect is small: it shows
at twice the best learning rate; at half of that it shows at depth 32 only, and at a quarter not within 2000 steps at
depth 64. Gradients of neighboring blocks' weights are parallel in linear networks, at a cosine of 1/2 with ReLU and
orthogonal with the absolute value. 5 minutes on two cores.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale
from depthmup_flax.data import DATA_DEFAULTS
from reproduction.limits import limits_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """Four kinds of networks over depth and training time."""
    kinds = (("depth_mup", "relu"), ("ode", "relu"), ("depth_mup", "abs"), ("depth_mup", "linear"))
    return limits_config(
        "diversity",
        title="Features and gradients along depth, in trained residual MLPs (TP6 Fig. 17, 18, 19; 8.1, 8.3)",
        scale=scale,
        seed=0,  # of initial weights and data
        seeds=at_scale(scale, smoke=2, other=5),  # networks of each kind and depth
        data=dict(DATA_DEFAULTS),  # the images: digits; the paper has --config.data.name=tfds:cifar10
        # presets and nonlinearities that are compared
        kinds=at_scale(scale, smoke=kinds[:2], paper=kinds[:3], other=kinds),
        width=at_scale(scale, smoke=16, cpu=64, other=256),  # width of the networks
        # depth at which branches are multiplied by branch_multiplier alone
        base_depth=at_scale(scale, paper=8, other=4),
        branch_multiplier=at_scale(scale, paper=2 / 8**0.5, other=1.0),  # a, the constant of every branch
        # depths of the networks
        depths=at_scale(scale, smoke=(16,), cpu=(32, 128, 256), gpu=(32, 128, 512, 2048), paper=(64, 256)),
        # distances between layers, in units of the depth
        fractions=at_scale(
            scale,
            smoke=(1 / 8, 1 / 4),
            paper=tuple(2.0**-k for k in range(6, 0, -1)),
            other=(1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2),
        ),
        # steps of training after which features are compared
        times=at_scale(scale, smoke=(0, 5), cpu=(0, 20, 100, 300), other=(0, 100, 500, 1000)),
        batch_size=64,  # images of a training step
        # of Adam. gpu, paper: the paper's. cpu: twice the best of configs/sweeps/abs.py at its width; see above.
        learning_rate=at_scale(scale, gpu=2**-10, paper=1e-3, other=2**-6),
        inputs=16,  # held-out images on which distances are measured
    )
