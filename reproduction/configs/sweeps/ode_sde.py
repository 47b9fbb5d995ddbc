"""The exponent alpha = 1 (the ODE limit) against 1/2 (Depth-muP): residual MLP, Adam (TP6 Fig. 11; B24 App. M).

    depthmup sweep --config=reproduction/configs/sweeps/ode_sde.py --workdir=runs/ode_sde

Claim: with alpha = 1 the best rate moves up with depth, and the loss is above that of Depth-muP.

Measured at scale ``cpu`` on two CPU cores: 216 runs, 2 minutes of training. From depth 4 to 256 the best rate moves by
0.13 +- 0.25 octaves under alpha = 1 (n = 3), and its loss is lower: 1.847 against 1.889. At scale ``long``, 20 epochs
of 5,000 images in 28 core-minutes, Depth-muP's is lower: 0.044 against 0.137 at depth 64 (n = 8).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 10, with other parametrizations."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    depths = parent.grids.depths
    grid = {
        "parametrization.preset": ("depth_mup", "ode"),
        "model.depth": depths.model.depth,
        "optimizer.learning_rate": depths.optimizer.learning_rate,
        "seed": depths.seed,
    }
    return sweep_config(
        parent.base,
        {"depths": grid},
        figure="ode-sde",
        title="Learning rate over depth, alpha = 1/2 and alpha = 1 (TP6 Fig. 11)",
        scale=scale,
        extend=2,
    )
