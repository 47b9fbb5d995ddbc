"""Learning rate over batch size and training steps: residual MLP with SGD, without and with momentum.

    depthmup sweep --config=reproduction/configs/sweeps/batch_and_steps_sgd.py --workdir=runs/batch_and_steps_sgd

The batch sizes and steps of batch_and_steps.py. Momentum averages over the same number of examples at every batch size.
"""

import pathlib

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: the parent's grids of single steps without momentum, those of averages in examples with momentum."""
    parent = from_file(pathlib.Path(__file__).with_name("batch_and_steps.py"), scale)
    base = parent.base
    base.optimizer.name = "sgd"
    base.optimizer.kwargs.update(b1=None, b2=None)
    # The rate of the averaged gradient, eta / (1 - momentum).
    rates = at_scale(scale, smoke=powers_of_two(-4, 0, 2), other=powers_of_two(-6, 2))
    grids = {}
    for name, grid in parent.grids.to_dict().items():
        b1 = grid["optimizer"].pop("kwargs")["b1"][0]
        batch = grid["train"]["batch_size"][0]
        if batch > 512:  # without momentum the best rate is at the edge of stability from 256 on
            continue
        if not name.endswith("_time"):
            # Half octaves at the edge of stability, where the best rate lies.
            grid["optimizer"]["learning_rate"] = (*rates, 2**0.5, 2**1.5) if scale != "smoke" else rates
        elif name.startswith("batch"):
            higher = (*rates, *powers_of_two(3, 4)) if batch == 512 else rates
            scaled = tuple(rate * (1 - b1) for rate in higher)
            grid["optimizer"].update(learning_rate=scaled, kwargs={"momentum": (b1,)})
        else:
            continue
        grids[name] = flatten_dict(grid, sep=".")
    return sweep_config(
        base,
        grids,
        figure="batch and steps (MLP, SGD)",
        scale=scale,
        title="Learning rate over batch size and training steps, residual MLP with SGD",
    )
