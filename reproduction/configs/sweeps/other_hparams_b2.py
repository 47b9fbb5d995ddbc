"""Adam's b2 over width and depth: residual MLP with Adam; see other_hparams_warmup.py.

    depthmup sweep --config=reproduction/configs/sweeps/other_hparams_b2.py --workdir=runs/b2

Measured at scale ``cpu`` on two CPU cores: 150 runs, 4 minutes of training; from 0.984 up the loss changes by at
most 0.01, at every size (n = 5).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    return from_file(pathlib.Path(__file__).with_name("other_hparams_warmup.py"), scale, "optimizer.kwargs.b2")
