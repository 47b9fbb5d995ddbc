"""The sweep of hyperball.py with a readout that starts at zero.

depthmup sweep --config=reproduction/configs/sweeps/hyperball_zero.py --workdir=runs/hyperball_zero
depthmup report runs/hyperball_zero
"""

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    config = from_file("reproduction/configs/sweeps/hyperball.py", scale)
    config.base.model.zero_init_readout = True
    config.title = f"{config.title}, readout at zero"
    return config
