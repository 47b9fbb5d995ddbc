"""The input layer's learning-rate factor over width and depth: residual MLP with Adam; see other_hparams_warmup.py.

    depthmup sweep --config=reproduction/configs/sweeps/other_hparams_input_lr_factor.py --workdir=runs/input_lr_factor

Measured at scale ``cpu`` on two CPU cores: 125 runs, 3 minutes of training; 0.79, 0.62, 0.65 are best at
depths 4, 16, 64, and 0.31 at width 128 (n = 5).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    return from_file(
        pathlib.Path(__file__).with_name("other_hparams_warmup.py"), scale, "parametrization.input_lr_factor"
    )
