"""Hyperball against AdamW with decay and Muon, over width and depth together: residual MLP, warm-up and decay to zero.

depthmup sweep --config=reproduction/configs/sweeps/hyperball.py --workdir=runs/hyperball
depthmup report runs/hyperball
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import default_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: four optimizers at the base, and at four times width and depth."""
    base = default_config("res_mlp")
    base.model.update(width=32, depth=4, base_width=32, base_depth=4)
    base.data.update(name="tfds:cifar10", image_size=16, train_examples=9600, test_examples=500)
    steps = at_scale(scale, smoke=20, other=300)
    base.optimizer.update(schedule="linear", warmup_steps=steps // 10)
    base.train.update(steps=steps, average_steps=steps // 10, log_every=steps // 10)
    rates = {"adam": (-12, -4), "muon": (-10, -2), "adamh": (-8, 0), "muonh": (-8, 0)}
    seeds = at_scale(scale, smoke=(0,), other=(0, 1, 2))
    grids = {}
    for name, (low, high) in rates.items():
        grid = {
            "optimizer.name": (name,),
            "optimizer.weight_decay": (0.1 if name in ("adam", "muon") else 0.0,),
            "optimizer.learning_rate": powers_of_two(low, high),
            "seed": seeds,
        }
        grids[f"{name}_base"] = grid
        grids[f"{name}_large"] = {**grid, "model.width": (128,), "model.depth": (16,)}
    return sweep_config(base, grids, figure="hyperball", title="Hyperball, Adam and Muon", scale=scale)
