"""The largest learning rate that trains, over depth: a GPT on text, Adam (TP6 Fig. 16).

    depthmup sweep --config=reproduction/configs/sweeps/megatron_largest_rate.py --workdir=runs/megatron_largest_rate
        --config.base.data.name=text:path/to/tinyshakespeare.txt

Claim: in the middle and at the end of training, the largest rate that trains moves less over depth with the 1/sqrt(L)
scaling than without.

Measured at scale ``cpu`` on two CPU cores: 144 runs, 16 minutes beside other jobs. Without the scaling the largest rate
follows depth^-0.22 (-0.44 to 0.01); with it, it moves upward, by no less (n = 4).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: megatron.py at the rates from its best ones to where nothing trains."""
    parent = from_file(pathlib.Path(__file__).with_name("megatron.py"), scale)
    rates = parent.grids.rates
    grid = {
        "model.depth": at_scale(scale, cpu=(2, 4, 8), other=rates.model.depth),
        "optimizer.learning_rate": at_scale(scale, smoke=powers_of_two(-5, -1, 2), other=powers_of_two(-5, 0)),
        "seed": at_scale(scale, cpu=(0, 1, 2, 3), other=rates.seed),
        "parametrization.preset": rates.parametrization.preset,
    }
    return sweep_config(
        parent.base,
        {"rates": grid},
        figure="megatron (largest rate)",
        title="The largest learning rate that trains over depth, GPT on text with Adam (TP6 Fig. 16)",
        scale=scale,
    )
