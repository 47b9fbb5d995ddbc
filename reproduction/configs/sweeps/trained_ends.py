"""Learning rate over depth and width, residual MLP with Adam, stem and readout trained (compare TP6 Fig. 10, 11).

    depthmup sweep --config=reproduction/configs/sweeps/trained_ends.py --config.scale=long --workdir=runs/trained_ends

TP6 freezes stem and readout. Then scaling only the blocks is Depth-muP at another rate, run for run, and the ends'
learning rates do not matter. Here all layers are trained, as users do. ``joint`` multiplies width and depth by four.
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: as Fig. 10, with every layer trained and with alpha = 1."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    parent.base.optimizer.frozen = ()
    width, depth = parent.base.model.width, parent.base.model.depth
    depths, widths = parent.grids.depths, parent.grids.widths
    common = {"optimizer.learning_rate": depths.optimizer.learning_rate, "seed": depths.seed}
    presets = at_scale(
        scale,
        smoke=("depth_mup", "mup"),
        gpu10=("depth_mup", "ode"),
        other=("depth_mup", "ode", "block_only", "mup", "sp"),
    )
    grids = {
        "depths": {"parametrization.preset": presets, "model.depth": depths.model.depth, **common},
        "widths": {
            "parametrization.preset": at_scale(scale, smoke=("depth_mup",), other=("depth_mup", "sp")),
            "model.width": widths.model.width,
            **common,
        },
        "joint": {
            "parametrization.preset": at_scale(scale, smoke=("depth_mup",), other=("depth_mup", "ode")),
            "model.width": (4 * width,),
            "model.depth": (4 * depth,),
            **common,
        },
    }
    if scale == "gpu10":
        grids = {"depths": grids["depths"]}
    return sweep_config(
        parent.base,
        grids,
        figure="lr-width-depth (trained ends)",
        title="Learning rate over depth and width, residual MLP with Adam, every layer trained (TP6 Fig. 10, 11)",
        scale=scale,
        extend=3,
    )
