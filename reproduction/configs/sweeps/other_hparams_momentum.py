"""Momentum over depth: convolutional ResNet without norm, SGD with momentum (B24 Fig. 4 (a)).

    depthmup sweep --config=reproduction/configs/sweeps/other_hparams_momentum.py --workdir=runs/momentum

Claim: the best momentum and the learning curves are those of the base at every depth.

Measured at scale ``cpu`` on two CPU cores: 288 runs, 8 minutes of training. The best momentum is 0.89, 0.88, 0.87 at
depths 6, 12, 24 (+- 0.02 to 0.06, n = 12), and at the edge of the grid, 0.95, at depth 3.
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 1 under Depth-muP at one rate, over momentum."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_conv.py"), scale)
    parent.base.optimizer.update(name="momentum", learning_rate=0.046 / 4)
    grid = {
        "optimizer.kwargs.momentum": at_scale(
            scale,
            smoke=(0.0, 0.9),
            cpu=(0.0, 0.5, 0.7, 0.8, 0.9, 0.95),
            gpu=(0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
            paper=(0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
        ),
        "model.depth": parent.grids.depths.model.depth,
        "seed": at_scale(scale, cpu=tuple(range(12)), other=parent.grids.depths.seed),
    }
    return sweep_config(
        parent.base,
        {"depths": grid},
        figure="other-hparams (momentum)",
        title="Momentum over depth (B24 Fig. 4 (a))",
        scale=scale,
        x="optimizer.kwargs.momentum",
    )
