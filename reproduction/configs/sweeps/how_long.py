"""How early the best rate is settled: convolutional ResNet without norm, SGD, two depths, longer runs (B24 Fig. B.3).

    depthmup sweep --config=reproduction/configs/sweeps/how_long.py --workdir=runs/how_long

Claim: the order of the rates is settled early, and is the same at both depths. The report's figure over time shows it.

Measured at scale ``cpu`` on two CPU cores: 120 runs, 7 minutes of training. From step 100 of 400 on, the best rates of
depths 6 and 18 stay within 0.5 octaves of the last; the shift between the depths is -0.5 +- 0.2 octaves (n = 12).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 1 under Depth-muP, longer, at two depths."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_conv.py"), scale)
    base = parent.base
    if scale in ("cpu", "gpu"):
        steps = at_scale(scale, cpu=400, gpu=8000)
        base.train.update(steps=steps, average_steps=steps // 10, log_every=steps // 30)
    grid = {
        "optimizer.learning_rate": at_scale(
            scale,
            smoke=powers_of_two(-6, -2, 2),
            cpu=powers_of_two(-6, -2),
            gpu=powers_of_two(-7, -2),
            paper=(0.011, 0.023, 0.046, 0.092),
        ),
        "model.depth": at_scale(scale, smoke=(3, 6), cpu=(6, 18), gpu=(6, 24), paper=(6, 12, 30)),
        "seed": at_scale(scale, cpu=tuple(range(12)), other=parent.grids.depths.seed),
    }
    return sweep_config(
        base,
        {"depths": grid},
        figure="how-long",
        title="The best rate over training time (B24 Fig. B.3)",
        scale=scale,
    )
