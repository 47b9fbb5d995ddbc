"""One and two layers in a branch, at equal numbers of layers: residual MLP, Adam (TP6 Fig. 4 and 6).

    depthmup sweep --config=reproduction/configs/sweeps/block_depth.py --workdir=runs/block_depth

Claim: with two layers in a branch the loss is higher at the same number of layers, and the best rate moves.

Measured at scale ``cpu`` on two CPU cores: 162 runs, under a minute of training. The best rate follows depth^(0.28 +-
0.11) with two layers, depth^(0.17 +- 0.11) with one (n = 3); the loss at 64 layers is lower with two, 1.872 against
1.895. At scale ``long``, 20 epochs of 5,000 images, it is not resolved: 0.082 with two, 0.044 with one (n = 8).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 10 under Depth-muP, with half as many branches of two layers."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    depths = parent.grids.depths
    layers = at_scale(scale, cpu=depths.model.depth[:-1], other=depths.model.depth)
    common = {"optimizer.learning_rate": depths.optimizer.learning_rate, "seed": depths.seed}
    grids = {
        "one": {"model.block_depth": (1,), "model.depth": layers, **common},
        "two": {"model.block_depth": (2,), "model.depth": tuple(n // 2 for n in layers), **common},
    }
    return sweep_config(
        parent.base,
        grids,
        figure="block-depth",
        title="One and two layers in a branch at equal numbers of layers (TP6 Fig. 4, 6)",
        scale=scale,
        extend=2,
    )
