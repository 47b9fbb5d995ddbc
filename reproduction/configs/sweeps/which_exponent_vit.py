"""Which exponent for a transformer: ViT with Adam, three rules (reproduction/pages/which_exponent.md).

    depthmup sweep --config=reproduction/configs/sweeps/which_exponent_vit.py --workdir=runs/which_exponent_vit

The rules are Depth-muP, CompleteP, and Depth-muP with faster inner layers. Measured at scale ``cpu`` on two CPU cores:
138 runs. Shifts of the best rate are not resolved (n = 3); the lowest losses at depth 32 are 1.973, 1.942 and 1.961.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: rates over depth under each rule."""
    base = from_file("sweeps/vit", scale).base
    steps = at_scale(scale, smoke=20, cpu=200, other=3000)
    base.train.update(steps=steps, average_steps=steps // 8, log_every=max(1, steps // 20))
    base.train.batch_size = at_scale(scale, smoke=16, cpu=16, other=64)
    base.optimizer.warmup_steps = steps // 8
    factors = at_scale(scale, smoke=(1.0,), cpu=powers_of_two(-1, 2), other=powers_of_two(-3, 2))
    grid = {
        "model.depth": at_scale(scale, smoke=(2, 4), cpu=(2, 8, 32), other=(4, 16, 64)),
        "optimizer.learning_rate": tuple(2.0**-8 * factor for factor in factors),
        "seed": at_scale(scale, smoke=(0,), other=(0, 1, 2)),
    }
    return sweep_config(
        base,
        {
            "rules": {"parametrization.preset": ("depth_mup", "completep"), **grid},
            "inner": {"parametrization.inner_gamma": (0.0,), **grid},
        },
        figure="which-exponent-vit",
        title="Learning rate over depth under three rules: vision transformer with Adam",
        scale=scale,
        extend=2,
    )
