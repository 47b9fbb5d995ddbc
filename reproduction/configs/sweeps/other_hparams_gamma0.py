"""The feature-learning strength gamma0 over depth: convolutional ResNet without norm, SGD (B24 Fig. 4 (b)).

    depthmup sweep --config=reproduction/configs/sweeps/other_hparams_gamma0.py --workdir=runs/gamma0

Claim: the learning curves and the best gamma0 are those of the base at every depth.

Measured at scale ``cpu`` on two CPU cores: 180 runs, 3 minutes of training. The best gamma0 follows depth^(-0.40 +-
0.06); at twice the base's depth the base's costs 0.008 +- 0.009 (n = 12).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 1 under Depth-muP at one rate, over gamma0."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_conv.py"), scale)
    wide = powers_of_two(-3, 3)
    grid = {
        "parametrization.gamma0": at_scale(scale, smoke=(0.5, 2.0), cpu=powers_of_two(-2, 2), other=wide),
        "model.depth": at_scale(scale, cpu=(3, 6, 12), other=parent.grids.depths.model.depth),
        "seed": at_scale(scale, cpu=tuple(range(12)), other=parent.grids.depths.seed),
    }
    return sweep_config(
        parent.base,
        {"depths": grid},
        figure="other-hparams (gamma0)",
        title="Feature-learning strength over depth (B24 Fig. 4 (b))",
        scale=scale,
        x="parametrization.gamma0",
    )
