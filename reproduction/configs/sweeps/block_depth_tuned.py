"""One and two layers in a branch, each at its best rate and multiplier: residual MLP, Adam (TP6 Fig. 4, 5, 6).

    depthmup sweep --config=reproduction/configs/sweeps/block_depth_tuned.py --workdir=runs/block_depth_tuned

Claim: at equal numbers of layers the lowest loss over rate and multiplier is higher with two layers in a branch, with
ReLU (Fig. 4; longer training closes the gap) and with abs and LayerNorm (Fig. 5; it does not), and the best rate moves
more with depth (Fig. 6).

Measured at scale ``cpu`` on two CPU cores: 1440 runs, 28 minutes beside other jobs. Lowest loss at 64 layers (n = 5):
ReLU 1.849 with one layer, 1.858 with two; abs 1.841 and 1.867. Exponents of the best rate: -0.08 and 0.22, 0.17 and
0.29.
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: the depths of block_depth.py, over rate and multiplier, without and with LayerNorm and abs."""
    parent = from_file(pathlib.Path(__file__).with_name("block_depth.py"), scale)
    seeds = at_scale(scale, cpu=tuple(range(5)), paper=(0, 1), other=parent.grids.one.seed)
    tuned = parent.base.parametrization.branch_multiplier
    multipliers = at_scale(
        scale,
        smoke=powers_of_two(-2, 2, 2),
        cpu=powers_of_two(-3, 0),
        long=powers_of_two(-3, 1),
        other=powers_of_two(-4, 3),
    )
    # LayerNorm and small multipliers need high rates.
    rates = at_scale(
        scale,
        smoke=powers_of_two(-9, -3, 2),
        cpu=powers_of_two(-9, -4),
        long=powers_of_two(-11, -3),
        other=powers_of_two(-14, -2),
    )
    grids = {
        f"{nonlinearity}_{name}": {
            "model.nonlinearity": (nonlinearity,),
            "model.norm": (norm,),
            "model.block_depth": grid.model.block_depth,
            "model.depth": grid.model.depth,
            "optimizer.learning_rate": rates,
            "parametrization.branch_multiplier": tuple(tuned * factor for factor in multipliers),
            "seed": seeds,
        }
        for nonlinearity, norm in (("relu", "none"), ("abs", "layer"))
        for name, grid in parent.grids.items()
    }
    return sweep_config(
        parent.base,
        grids,
        figure="block-depth (tuned)",
        title="One and two layers in a branch, each at its best rate and multiplier (TP6 Fig. 4, 5, 6)",
        scale=scale,
    )
