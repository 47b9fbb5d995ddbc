"""Learning rate over width and depth with Muon and Adam: GPT on text; see muon.py.

    depthmup sweep --config=reproduction/configs/sweeps/muon_gpt.py --workdir=runs/muon_gpt
        --config.base.data.name=text:path/to/tinyshakespeare.txt

Measured at scale ``cpu`` on two CPU cores: 426 runs. The best rate follows width^0.01 (95 % interval -0.18 to 0.20)
under ``depth_mup``. Muon's lowest losses are 0.10 to 0.12 below Adam's at equal steps (n = 5).
"""

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    return from_file("sweeps/muon", scale, "gpt")
