"""Learning rate over depth and width: residual MLP, Adam, stem and readout frozen (TP6 Fig. 10).

    depthmup sweep --config=reproduction/configs/sweeps/lr_width_depth_mlp.py --workdir=runs/lr_mlp
    depthmup report runs/lr_mlp

Claim: under Depth-muP the best rate is that of the base at every depth, and deeper is better; scaling only the block
moves it; without depth scaling deep networks are worse at any rate.

Measured at scale ``cpu`` on two CPU cores: 660 runs in ten minutes. From depth 4 to 256 the best rate moves by 0.9 +-
0.4 octaves under Depth-muP, regret 0.013 (0.004 to 0.021), and by -2.1 under block-only, regret 0.11 (n = 3); muP and
SP do not train from depth 64 on.

Scale ``long`` passes a small set many times: 5,000 images of 16 x 16 pixels, 20 epochs, width 64, n = 8. Its size, grid
and base (a sixteenth of the largest depth) were committed before its runs.
"""

import math

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def base_config(scale: str) -> ConfigDict:
    """The run at the base depth and width, which other sweeps of the residual MLP start from."""
    base = from_file("cifar10_resmlp")
    width, depth = at_scale(
        scale, smoke=(16, 2), cpu=(32, 4), long=(64, 4), gpu10=(256, 8), gpu=(128, 8), paper=(256, 8)
    )
    base.model.update(width=width, depth=depth, base_width=width, base_depth=depth)
    base.parametrization.branch_multiplier = 2 / math.sqrt(depth)  # as the parent's, at this base depth
    # The paper's epochs, or enough steps to settle the order of the curves.
    steps = at_scale(scale, smoke=20, cpu=300, long=1560, gpu10=4000, gpu=1500, paper=39050)
    average_steps = at_scale(scale, smoke=10, cpu=50, long=78, gpu10=1000, gpu=200, paper=1000)  # long: one epoch
    base.train.update(epochs=0.0, steps=steps, average_steps=average_steps)
    base.train.log_every = max(1, steps // 20)
    if scale == "smoke":
        base.data.update(name="synthetic", train_examples=256, test_examples=64)
    else:
        base.data.test_examples = 2000 if scale != "paper" else 0
    if scale == "long":
        base.data.update(image_size=16, train_examples=5000)
    return base


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    base = base_config(scale)
    width = base.model.base_width
    rates = at_scale(
        scale,
        smoke=powers_of_two(-11, -7, 2),
        cpu=powers_of_two(-13, -5),
        long=powers_of_two(-10, -6, 0.5),
        gpu10=powers_of_two(-13, -9, 0.5),
        gpu=powers_of_two(-14, -6),
        paper=powers_of_two(-15, -5),
    )
    presets = at_scale(
        scale,
        smoke=("depth_mup", "mup"),
        long=("depth_mup", "mup", "sp"),  # with frozen ends, block_only repeats depth_mup's runs
        other=("depth_mup", "block_only", "mup", "sp"),
    )
    seeds = at_scale(scale, smoke=(0,), long=tuple(range(8)), paper=(0, 1, 2, 3, 4), other=(0, 1, 2))
    grids = {
        "depths": {
            "parametrization.preset": presets,
            "model.depth": at_scale(
                scale,
                smoke=(2, 8),
                cpu=(4, 16, 64, 256),
                long=(4, 16, 64),
                gpu10=(8, 32, 128, 512),
                gpu=(8, 32, 128, 512, 1024),
                paper=tuple(2**k for k in range(3, 11)),
            ),
            "optimizer.learning_rate": rates,
            "seed": seeds,
        },
        "widths": {
            "parametrization.preset": presets,
            "model.width": at_scale(
                scale,
                smoke=(width, 2 * width),
                other=(width, 2 * width, 4 * width),
            ),
            "optimizer.learning_rate": rates,
            "seed": seeds,
        },
    }
    return sweep_config(
        base,
        grids,
        figure="lr-width-depth (MLP)",
        scale=scale,
        extend=2,
        title="Learning rate over depth and width, residual MLP with Adam (TP6 Fig. 10)",
    )
