"""Learning rate over training steps with weight decay: residual MLP with AdamW.

    depthmup sweep --config=reproduction/configs/sweeps/steps_with_decay.py --workdir=runs/steps_with_decay

The curves over steps of batch_and_steps.py, with each of two decays kept over all lengths.
"""

import pathlib

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: the parent's lengths at its batch size."""
    parent = from_file(pathlib.Path(__file__).with_name("batch_and_steps.py"), scale)
    parent.base.optimizer.name = "adamw"
    grids = {}
    for decay in at_scale(scale, smoke=(0.25,), other=(0.25, 1.0)):
        for steps in at_scale(scale, smoke=(15, 30), other=(300, 600, 1200, 2400)):
            grid = flatten_dict(parent.grids[f"steps_{steps}"].to_dict(), sep=".")
            grid["optimizer.weight_decay"] = decay
            grids[f"decay_{100 * decay:.0f}_percent_steps_{steps}"] = grid
    return sweep_config(
        parent.base,
        grids,
        figure="steps with decay (MLP)",
        scale=scale,
        extend=2,
        title="Learning rate over training steps with weight decay, residual MLP with AdamW",
    )
