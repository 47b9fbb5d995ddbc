"""Branch multiplier over depth: a GPT on text, Adam (TP6 Fig. 14).

    depthmup sweep --config=reproduction/configs/sweeps/megatron_multiplier.py --workdir=runs/megatron_multiplier
        --config.base.data.name=text:path/to/tinyshakespeare.txt

Claim: transformers are insensitive to the branch multiplier.

Measured at scale ``cpu`` on two CPU cores: 45 runs, 3 minutes of training. Best a 0.94, 0.99, 0.95 at depths 2, 4, 8 (n
= 3; 95 % interval at depth 8: 0.8 to 1.1); a factor of two costs 0.01 of a loss of 2.53.
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep: multipliers over depth at the base's rate."""
    parent = from_file(pathlib.Path(__file__).with_name("megatron.py"), scale)
    wide = powers_of_two(-2, 2) if scale == "cpu" else powers_of_two(-3, 3)
    grid = {
        "model.depth": at_scale(scale, cpu=(2, 4, 8), other=parent.grids.rates.model.depth),
        "parametrization.branch_multiplier": at_scale(scale, smoke=(0.5, 2.0), other=wide),
        "seed": at_scale(scale, cpu=(0, 1, 2), other=parent.grids.rates.seed),
    }
    return sweep_config(
        parent.base,
        {"multipliers": grid},
        figure="megatron (multiplier)",
        title="Branch multiplier over depth, GPT on text with Adam (TP6 Fig. 14)",
        scale=scale,
        x="parametrization.branch_multiplier",
    )
