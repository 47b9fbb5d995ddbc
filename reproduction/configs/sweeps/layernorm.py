"""Learning rate over depth with LayerNorm before each branch: residual MLP with abs, Adam (TP6 Fig. 12).

    depthmup sweep --config=reproduction/configs/sweeps/layernorm.py --workdir=runs/layernorm

Claim: with LayerNorm, too, Depth-muP keeps the best rate; scaling only the block does not.

Measured at scale ``cpu`` on two CPU cores: 162 runs, 1 minute of training. Shift from depth 4 to 64 (n = 3): Depth-muP
0.2 +- 1.5 octaves, regret 0.001 (0 to 0.029); block-only -1.8 +- 1.5, regret 0.06 +- 0.05.
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 10, with abs and a LayerNorm."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    parent.base.model.update(nonlinearity="abs", norm="layer")
    if scale == "long":
        parent.base.optimizer.frozen = ()  # with frozen ends, block_only repeats depth_mup's runs
    depths = parent.grids.depths
    grid = {
        "parametrization.preset": ("depth_mup", "block_only"),
        "model.depth": at_scale(scale, cpu=depths.model.depth[:-1], other=depths.model.depth),
        "optimizer.learning_rate": depths.optimizer.learning_rate,
        "seed": depths.seed,
    }
    return sweep_config(
        parent.base,
        {"depths": grid},
        figure="layernorm",
        title="Learning rate over depth with LayerNorm and abs (TP6 Fig. 12)",
        scale=scale,
        extend=2,
    )
