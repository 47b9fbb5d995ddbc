"""Which schedule moves the best rate least, over width and depth and with four times the steps: residual MLP, Adam.

    depthmup sweep --config=reproduction/configs/sweeps/schedules.py --workdir=runs/schedules
    depthmup report runs/schedules

At scale ``long`` the base alone, for four times the steps; the best rates of both reports are compared.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import default_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: five schedules at the base, and, but for ``long``, at four times width and depth."""
    base = default_config("res_mlp")
    base.model.update(width=32, depth=4, base_width=32, base_depth=4)
    base.data.update(name="tfds:cifar10", image_size=16, train_examples=9600, test_examples=500)
    steps = at_scale(scale, smoke=20, long=600, other=150)
    base.optimizer.update(warmup_steps=steps // 10)
    base.train.update(steps=steps, average_steps=steps // 10, log_every=steps // 10)
    grid = {
        "optimizer.schedule": ("constant", "cosine", "linear", "wsd", "rsqrt"),
        "optimizer.learning_rate": at_scale(scale, smoke=powers_of_two(-9, -7), other=powers_of_two(-12, -4)),
        "seed": at_scale(scale, smoke=(0,), other=(0, 1, 2, 3, 4)),
    }
    sizes = {"base": grid}
    if scale != "long":
        sizes["large"] = {**grid, "model.width": (128,), "model.depth": (16,)}
    return sweep_config(base, sizes, figure="schedules", title="Schedules and transfer", scale=scale)
