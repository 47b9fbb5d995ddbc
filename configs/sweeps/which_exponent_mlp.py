"""Two layers in a branch, residual MLP: Depth-muP, CompleteP and Depth-muP with faster inner layers, Adam.

python -m depthmup_flax.sweep --config=configs/sweeps/which_exponent_mlp.py --workdir=runs/which_exponent_mlp
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.sweep import at_scale, sweep_config
from depthmup_flax.training.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: rates over depth under each rule."""
    parent = from_file(pathlib.Path(__file__).with_name("lr_width_depth_mlp.py"), scale)
    base = parent.base
    base.model.update(block_depth=2, depth=2, base_depth=2)
    grid = {
        "model.depth": at_scale(scale, smoke=(2, 4), other=(2, 8, 32, 128)),
        "optimizer.learning_rate": parent.grids.depths.optimizer.learning_rate,
        "seed": parent.grids.depths.seed,
    }
    return sweep_config(
        base,
        {
            "rules": {"parametrization.preset": ("depth_mup", "completep"), **grid},
            "inner": {"parametrization.inner_gamma": (0.0,), **grid},
        },
        figure="which-exponent-mlp",
        title="Learning rate over depth, two layers in a branch: residual MLP with Adam",
        scale=scale,
        extend=3,
    )
