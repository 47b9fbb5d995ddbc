"""Weight decay over depth: convolutional ResNet without norm, SGD (B24 Fig. B.8).

    depthmup sweep --config=reproduction/configs/sweeps/other_hparams_weight_decay.py --workdir=runs/weight_decay

Claim: the learning curves and the best weight decay are those of the base at every depth.

Measured at scale ``cpu`` on two CPU cores: 192 runs, 4 minutes of training, n = 8. The lowest weight decay of the grid
is best at depths 6 and 12: not resolved.
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 1 under Depth-muP at one rate, over weight decay."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_conv.py"), scale)
    wide = tuple(10.0**k for k in (-3, -2, -1.5, -1, -0.5, 0, 0.5))
    grid = {
        "optimizer.weight_decay": at_scale(scale, smoke=(0.01, 0.1), cpu=(1e-4, 10**-3.5, *wide[:6]), other=wide),
        "model.depth": at_scale(scale, cpu=(3, 6, 12), other=parent.grids.depths.model.depth),
        "seed": at_scale(scale, cpu=tuple(range(8)), other=parent.grids.depths.seed),
    }
    return sweep_config(
        parent.base,
        {"depths": grid},
        figure="other-hparams (weight decay)",
        title="Weight decay over depth (B24 Fig. B.8)",
        scale=scale,
        x="optimizer.weight_decay",
    )
