"""The nonlinearity before or after a branch's weights: residual MLP, Adam (TP6 Fig. 2).

    depthmup sweep --config=reproduction/configs/sweeps/pre_nonlin.py --workdir=runs/pre_nonlin

Claim: with the nonlinearity first the best rate transfers, but depth stops helping, and the loss is far higher.

Measured at scale ``cpu`` on two CPU cores: 162 runs, under a minute of training. With the nonlinearity first the best
rate moves by 0.4 +- 0.2 octaves from depth 4 to 64, regret 0.006 (0.002 to 0.010), and the loss stays at 2.00; with it
last the loss falls from 1.925 to 1.895 (n = 3). At scale ``long``, 20 epochs of 5,000 images: 0.88 to 0.89 with it
first, 0.54 to 0.04 with it last (n = 8).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 10 under Depth-muP, with both orders."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    depths = parent.grids.depths
    grid = {
        "model.pre_nonlin": (False, True),
        "model.depth": at_scale(scale, cpu=depths.model.depth[:-1], other=depths.model.depth),
        "optimizer.learning_rate": depths.optimizer.learning_rate,
        "seed": depths.seed,
    }
    return sweep_config(
        parent.base,
        {"depths": grid},
        figure="pre-nonlin",
        title="Nonlinearity before and after the weights, over depth (TP6 Fig. 2)",
        scale=scale,
        extend=2,
    )
