"""Learning rate over depth and width: residual MLP with SGD, stem and readout frozen (TP6 Table 1; compare Fig. 10).

    depthmup sweep --config=reproduction/configs/sweeps/lr_width_depth_sgd.py --workdir=runs/lr_sgd

Claim: under Depth-muP one rate of SGD serves every depth and width, as its gradients shrink by depth^-1/2 themselves.
The papers train the residual MLP with Adam alone.

Measured at scale ``cpu`` on two CPU cores: 552 runs in 5 minutes (n = 3). From depth 4 to 64 the best rate moves by 0.9
+- 0.8 octaves under Depth-muP, regret 0.014 (0 to 0.032); muP and SP do not train at depth 64.
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: the sizes of Fig. 10, with SGD. `block_only` refuses SGD: it would be `depth_mup`."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    parent.base.optimizer.name = "sgd"
    rates = at_scale(scale, smoke=powers_of_two(-2, 2, 2), cpu=powers_of_two(-5, 3), other=powers_of_two(-7, 4))
    presets = at_scale(scale, smoke=("depth_mup", "mup"), other=("depth_mup", "ode", "mup", "sp"))
    depths, widths = parent.grids.depths, parent.grids.widths
    common = {"parametrization.preset": presets, "optimizer.learning_rate": rates, "seed": depths.seed}
    grids = {
        "depths": {"model.depth": at_scale(scale, cpu=depths.model.depth[:-1], other=depths.model.depth), **common},
        "widths": {"model.width": widths.model.width, **common},
    }
    return sweep_config(
        parent.base,
        grids,
        figure="lr-width-depth (MLP, SGD)",
        title="Learning rate over depth and width, residual MLP with SGD (TP6 Table 1)",
        scale=scale,
        extend=2,
    )
