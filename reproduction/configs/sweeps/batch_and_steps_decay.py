"""Weight decay over batch size: residual MLP with Adam at the rate and averages rescaled for the batch size.

    depthmup sweep --config=reproduction/configs/sweeps/batch_and_steps_decay.py --workdir=runs/batch_and_steps_decay

The times of decay, 1 / (rate * weight decay), are the same parts of the run at every batch size.
"""

import pathlib

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file
from depthmup_flax.rule.batch_and_steps import Hyperparameters, rescaled_hyperparameters


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: the parent's batch sizes with averages in examples."""
    parent = from_file(pathlib.Path(__file__).with_name("batch_and_steps.py"), scale)
    train = parent.base.train
    tuned = Hyperparameters(2.0**-6, train.batch_size, train.steps)
    times = at_scale(scale, smoke=powers_of_two(-2, 2, 2), other=powers_of_two(-5, 3))  # in runs
    grids = {}
    for batch in at_scale(scale, smoke=(64, 128), other=(32, 128, 512)):
        target = rescaled_hyperparameters(tuned, batch_size=batch)
        grid = flatten_dict(parent.grids[f"batch_{batch}_time"].to_dict(), sep=".")
        grid["optimizer.learning_rate"] = target.learning_rate
        # A decay of 0 is the end of the axis.
        grid["optimizer.weight_decay"] = (0.0, *(1 / (target.learning_rate * target.steps * time) for time in times))
        grids[f"batch_{batch}"] = grid
    return sweep_config(
        parent.base,
        grids,
        figure="batch and steps (decay)",
        scale=scale,
        title="Weight decay over batch size, residual MLP with Adam",
        x="optimizer.weight_decay",
    )
