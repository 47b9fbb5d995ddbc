"""Start here. CIFAR-10, learning rate of a residual MLP over depth, and over width and depth together.

    depthmup sweep --config=sweeps/cifar10
    depthmup report

The figure of the README: every layer is trained with Adam, a warm-up and a cosine, in two passes over all 50,000 images
at 16 x 16 pixels. The control is the standard parametrization; over depth alone muP has the same runs. ``joint``
doubles the width at four times the depth, ``wide`` the width alone, which tells what depth adds.

Measured on two CPU cores: 410 runs, 46 minutes (35, and 11 for ``wide`` beside other jobs). The base's rate costs
0.0035 (95 % interval 0 to 0.0095) at the joint size and 0.021 (0.016 to 0.027) at depth 64, where the best rate is 1.6
octaves higher (n = 5). The standard parametrization does not train at depth 64, and is worse than the base at the joint
size, though better at twice the width alone.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import default_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    width, depth = at_scale(scale, smoke=(16, 2), cpu=(64, 4))
    steps = at_scale(scale, smoke=20, cpu=1562)
    base = default_config("res_mlp")
    base.model.update(width=width, depth=depth, base_width=width, base_depth=depth)
    base.data.update(name="tfds:cifar10", image_size=16)
    if scale == "smoke":
        base.data.update(name="synthetic", train_examples=256, test_examples=64)
    base.optimizer.update(name="adam", warmup_steps=steps // 15, schedule="cosine")
    base.train.update(batch_size=64, epochs=0.0, steps=steps, average_steps=steps // 20, log_every=steps // 20)
    common = {
        "parametrization.preset": ("depth_mup", "sp"),
        "optimizer.learning_rate": powers_of_two(-13, -6, at_scale(scale, smoke=3.5, cpu=1)),
        "seed": at_scale(scale, smoke=(0,), cpu=(0, 1, 2, 3, 4)),
    }
    grids = {
        "depths": {"model.depth": at_scale(scale, smoke=(2, 8), cpu=(4, 16, 64)), **common},
        "wide": {"model.width": (2 * width,), "model.depth": (depth,), **common},
        "joint": {"model.width": (2 * width,), "model.depth": (4 * depth,), **common},
    }
    return sweep_config(
        base,
        grids,
        figure="cifar10",
        title="Learning rate over depth, and over width and depth: residual MLP on CIFAR-10, every layer trained",
        scale=scale,
        extend=2,
    )
