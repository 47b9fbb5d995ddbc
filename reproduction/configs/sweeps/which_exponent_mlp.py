"""Which exponent for branches of two layers: residual MLP with Adam, three rules (pages/which_exponent.md).

    depthmup sweep --config=reproduction/configs/sweeps/which_exponent_mlp.py --workdir=runs/which_exponent_mlp

The rules are Depth-muP, CompleteP, and Depth-muP with faster inner layers. Measured at scale ``cpu`` on two CPU cores:
324 runs, 4 minutes. From depth 2 to 128 the best rate moves by 1.43 +- 0.94, 0.43 +- 0.84 and -0.81 +- 0.9 octaves
(n = 3); the lowest losses at depth 128 are 1.844, 1.857 and 1.838.
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: rates over depth under each rule."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    base = parent.base
    base.model.update(block_depth=2, depth=2, base_depth=2)
    grid = {
        "model.depth": at_scale(scale, smoke=(2, 4), other=(2, 8, 32, 128)),
        "optimizer.learning_rate": parent.grids.depths.optimizer.learning_rate,
        "seed": parent.grids.depths.seed,
    }
    return sweep_config(
        base,
        {
            "rules": {"parametrization.preset": ("depth_mup", "completep"), **grid},
            "inner": {"parametrization.inner_gamma": (0.0,), **grid},
        },
        figure="which-exponent-mlp",
        title="Learning rate over depth, two layers in a branch: residual MLP with Adam",
        scale=scale,
        extend=3,
    )
