"""Learning rate and branch multiplier together, with two layers in a branch: abs, LayerNorm, Adam (TP6 Fig. 7).

    depthmup sweep --config=reproduction/configs/sweeps/block_depth_heatmap.py --workdir=runs/heatmap

Claim: in the plane of log2 rate (across) and log2 multiplier (up) the slope of the best region goes from -2 in shallow
to -1 in deep networks, so that no scaling of both with depth keeps the optimum.

Measured at scale ``cpu`` on two CPU cores: 1782 runs, 14 minutes of training. Slopes -2.7, -2.1, -1.5 at depths 2, 16,
128 (n = 6; 95 % interval at depth 128: -2.0 to -1.2).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 10 under Depth-muP, over rate and multiplier."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    parent.base.model.update(nonlinearity="abs", norm="layer", block_depth=2)
    # LayerNorm and small multipliers need high rates; the grid must contain the best region.
    rates = at_scale(scale, smoke=powers_of_two(-2, 2, 2), cpu=powers_of_two(-3, 7), other=powers_of_two(-5, 7))
    multipliers = at_scale(scale, smoke=powers_of_two(-2, 2, 2), cpu=powers_of_two(-5, 3), other=powers_of_two(-6, 4))
    grid = {
        "model.depth": at_scale(
            scale, smoke=(2, 8), cpu=(2, 16, 128), gpu=(2, 32, 256), paper=tuple(2**k for k in range(1, 11))
        ),
        "optimizer.learning_rate": tuple(1e-3 * factor for factor in rates),
        "parametrization.branch_multiplier": multipliers,
        "seed": at_scale(scale, smoke=(0,), cpu=tuple(range(6)), other=(0, 1)),
    }
    return sweep_config(
        parent.base,
        {"plane": grid},
        figure="block-depth (heat maps)",
        title="Rate and branch multiplier with two layers in a branch (TP6 Fig. 7)",
        scale=scale,
    )
