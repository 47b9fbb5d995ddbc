"""Learning rate over width and depth with Muon and Adam: convolutional ResNet; see muon.py.

    depthmup sweep --config=reproduction/configs/sweeps/muon_conv.py --workdir=runs/muon_conv

Measured at scale ``cpu`` on two CPU cores: 315 runs. The best rate follows width^-0.11 (95 % interval -0.46 to 0.24)
under ``depth_mup``, and depth^-0.43 (-0.51 to -0.35), as Adam's (-0.36). Muon's lowest losses are 0.07 to 0.10 below
Adam's at equal steps (n = 5).
"""

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    return from_file("sweeps/muon", scale, "simple_resnet")
