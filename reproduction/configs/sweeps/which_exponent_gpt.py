"""Which exponent for a transformer: GPT with Adam, three rules (reproduction/pages/which_exponent.md).

    depthmup sweep --config=reproduction/configs/sweeps/which_exponent_gpt.py --workdir=runs/which_exponent_gpt
        --config.base.data.name=text:path/to/tinyshakespeare.txt

The rules are Depth-muP, CompleteP, and Depth-muP with faster inner layers. Measured at scale ``cpu`` on two CPU cores:
108 runs. From depth 2 to 32 the best rate moves by 0.7 +- 2.4, -0.65 +- 0.68 and -1.08 +- 0.80 octaves (n = 3); the
lowest losses at depth 32 are 2.355, 2.339 and 2.367.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: rates over depth under each rule."""
    base = from_file("shakespeare_gpt")
    width, depth = at_scale(scale, smoke=(16, 2), cpu=(32, 2), other=(128, 4))
    base.model.update(width=width, depth=depth, base_width=width, base_depth=depth)
    steps = at_scale(scale, smoke=20, cpu=400, other=3000)
    base.train.update(
        steps=steps,
        average_steps=steps // 8,
        log_every=max(1, steps // 20),
        batch_size=at_scale(scale, smoke=8, cpu=8, other=64),
    )
    base.optimizer.warmup_steps = steps // 8
    base.data.context = at_scale(scale, smoke=16, cpu=32, other=128)
    factors = at_scale(scale, smoke=(1.0,), cpu=powers_of_two(1, 4), other=powers_of_two(-3, 2))
    grid = {
        "model.depth": at_scale(scale, smoke=(2, 4), cpu=(2, 8, 32), other=(4, 16, 64)),
        "optimizer.learning_rate": tuple(4e-3 * factor for factor in factors),
        "seed": at_scale(scale, smoke=(0,), other=(0, 1, 2)),
    }
    return sweep_config(
        base,
        {
            "rules": {"parametrization.preset": ("depth_mup", "completep"), **grid},
            "inner": {"parametrization.inner_gamma": (0.0,), **grid},
        },
        figure="which-exponent-gpt",
        title="Learning rate over depth under three rules: GPT on text with Adam",
        scale=scale,
        extend=1,
    )
