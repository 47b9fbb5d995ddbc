"""The readout's learning-rate factor over width and depth: residual MLP with Adam; see other_hparams_warmup.py.

    depthmup sweep --config=reproduction/configs/sweeps/other_hparams_output_lr_factor.py --workdir=runs/output

Measured at scale ``cpu`` on two CPU cores: 125 runs, 3 minutes of training; 0.96, 1.1, 0.89 are best at
depths 4, 16, 64, and 1.4 at width 128 (n = 5).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    return from_file(
        pathlib.Path(__file__).with_name("other_hparams_warmup.py"), scale, "parametrization.output_lr_factor"
    )
