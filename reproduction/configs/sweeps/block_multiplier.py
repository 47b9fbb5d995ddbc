"""The branch multiplier a over depth: residual MLP, Adam (TP6 Fig. 13).

    depthmup sweep --config=reproduction/configs/sweeps/block_multiplier.py --workdir=runs/block_multiplier

Claim: under Depth-muP the best multiplier converges as depth grows.

Measured at scale ``cpu`` on two CPU cores: 72 runs, under a minute of training. Best a 0.75, 0.72, 0.69 at depths 4,
16, 64 (n = 3; 95 % interval at depth 64: 0.54 to 0.90).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 10 under Depth-muP at one rate, over the multiplier."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    tuned = parent.base.parametrization.branch_multiplier
    grid = {
        "parametrization.branch_multiplier": tuple(tuned * factor for factor in powers_of_two(-4, 3)),
        "model.depth": at_scale(scale, cpu=parent.grids.depths.model.depth[:-1], other=parent.grids.depths.model.depth),
        "seed": parent.grids.depths.seed,
    }
    return sweep_config(
        parent.base,
        {"depths": grid},
        figure="block-multiplier",
        title="Branch multiplier over depth (TP6 Fig. 13)",
        scale=scale,
        x="parametrization.branch_multiplier",
        extend=2,
    )
