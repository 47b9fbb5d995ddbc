"""The nonlinearity before or after a branch's weights: residual MLP, Adam (TP6 Fig. 2).

    python -m depthmup_flax.sweep --config=configs/sweeps/pre_nonlin.py --workdir=runs/pre_nonlin

Claim: with the nonlinearity first the best rate transfers, but depth stops helping, and the loss is far higher.
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.sweep import at_scale, sweep_config
from depthmup_flax.training.config import from_file


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
