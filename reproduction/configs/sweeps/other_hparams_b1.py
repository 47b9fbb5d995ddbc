"""Adam's b1 over width and depth: residual MLP with Adam; see other_hparams_warmup.py.

    depthmup sweep --config=reproduction/configs/sweeps/other_hparams_b1.py --workdir=runs/b1

Measured at scale ``cpu`` on two CPU cores: 155 runs, 3 minutes of training; 0.8 is within 0.004 of the best
value, and 0.9 costs 0.007 to 0.017, at every size (n = 5).
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    return from_file(pathlib.Path(__file__).with_name("other_hparams_warmup.py"), scale, "optimizer.kwargs.b1")
