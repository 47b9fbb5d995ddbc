"""Learning rate over depth: a GPT on text, Adam (TP6 Fig. 15, 16); megatron_multiplier.py has Fig. 14.

    depthmup sweep --config=reproduction/configs/sweeps/megatron.py --workdir=runs/megatron
        --config.base.data.name=text:path/to/tinyshakespeare.txt

Claim: deeper is worse at first and better later, and how the best rate depends on depth changes with training time.
TP6 trains on Common Crawl, 4 billion tokens.

Measured at scale ``cpu`` on two CPU cores: 898 runs, 31 minutes of training. Shift from depth 2 to 16 (n = 16): 0.5
+- 0.2 octaves under Depth-muP, regret 0.003; -1.0 +- 0.3 under muP, regret 0.009 +- 0.009. Lowest losses at depth 16:
2.411 and 2.474.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: rates over depth, with and without depth scaling."""
    base = from_file("shakespeare_gpt")
    width, depth = at_scale(scale, smoke=(16, 2), cpu=(32, 2), gpu=(128, 4), paper=(256, 4))
    base.model.update(width=width, depth=depth, base_width=width, base_depth=depth)
    if scale != "paper":
        steps = at_scale(scale, smoke=20, cpu=200, gpu=3000)
        base.train.update(steps=steps, average_steps=steps // 8, log_every=max(1, steps // 20))
        base.train.batch_size = at_scale(scale, smoke=8, cpu=16, gpu=64)
        base.optimizer.warmup_steps = steps // 8
        base.data.context = at_scale(scale, smoke=16, cpu=32, gpu=128)
    else:
        base.train.log_every = 100
    depths = at_scale(scale, smoke=(2, 4), cpu=(2, 4, 8, 16), gpu=(4, 8, 16, 32), paper=(4, 8, 16, 32, 64))
    seeds = at_scale(scale, smoke=(0,), cpu=tuple(range(16)), other=(0, 1, 2))
    factors = at_scale(
        scale,
        smoke=powers_of_two(-2, 2, 2),
        cpu=powers_of_two(-2, 4),
        other=powers_of_two(-4, 3),
    )
    grid = {
        "model.depth": depths,
        "optimizer.learning_rate": tuple(4e-3 * factor for factor in factors),
        "seed": seeds,
        "parametrization.preset": ("depth_mup", "mup"),
    }
    return sweep_config(
        base,
        {"rates": grid},
        figure="megatron",
        title="Learning rate over depth, GPT on text with Adam (TP6 Fig. 15, 16)",
        scale=scale,
        extend=3,
    )
