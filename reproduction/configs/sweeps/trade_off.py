"""Loss against parameters over width and depth at one learning rate: convolutional ResNet, SGD (B24 Fig. B.1).

    depthmup sweep --config=reproduction/configs/sweeps/trade_off.py --workdir=runs/trade_off

Claim: at the transferred rate the loss is a power of the number of parameters, and a middle depth is best.

Measured at scale ``cpu`` on two CPU cores: 128 runs, 11 minutes of training. Loss ~ P^-0.03 at equal depth; at equal
numbers of parameters depth 12 is better than 24 and worse than 3 (n = 8).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 1 under Depth-muP, every width with every depth, at the printed rate."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_conv.py"), scale)
    grid = {
        "model.width": at_scale(
            scale,
            smoke=(16, 32),
            cpu=(16, 32, 64, 128),
            gpu=(32, 64, 128, 256, 512),
            paper=(64, 128, 256, 512, 1024, 2048),
        ),
        "model.depth": at_scale(
            scale, smoke=(3, 6), cpu=(3, 6, 12, 24), gpu=(3, 6, 12, 24, 48), paper=(3, 6, 9, 12, 18, 30)
        ),
        "optimizer.learning_rate": (0.046,),
        "seed": at_scale(scale, cpu=tuple(range(8)), other=parent.grids.depths.seed),
    }
    return sweep_config(
        parent.base,
        {"sizes": grid},
        figure="trade-off",
        title="Loss against parameters at the transferred rate (B24 Fig. B.1)",
        scale=scale,
    )
