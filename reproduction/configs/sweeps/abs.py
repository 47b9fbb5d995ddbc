"""ReLU and the absolute value in the branches: residual MLP, Adam (TP6 Fig. 3).

    depthmup sweep --config=reproduction/configs/sweeps/abs.py --workdir=runs/abs

Claim: with the absolute value, whose features are more diverse, deep networks reach a lower loss.

Measured at scale ``cpu`` on two CPU cores: 162 runs, under a minute of training. Lowest loss at depth 64: abs 2.018,
ReLU 1.895 (n = 3). At scale ``long``, 20 epochs of 5,000 images: abs 0.009, ReLU 0.044 (n = 8).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 10 under Depth-muP, with two nonlinearities."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    depths = parent.grids.depths
    grid = {
        "model.nonlinearity": ("relu", "abs"),
        "model.depth": at_scale(scale, cpu=depths.model.depth[:-1], other=depths.model.depth),
        "optimizer.learning_rate": depths.optimizer.learning_rate,
        "seed": depths.seed,
    }
    return sweep_config(
        parent.base,
        {"depths": grid},
        figure="abs",
        title="ReLU and absolute value over depth (TP6 Fig. 3)",
        scale=scale,
        extend=2,
    )
