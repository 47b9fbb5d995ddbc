"""Learning rate over width and depth with Muon, beside Adam: GPT on text; see muon.py.

    python -m depthmup_flax.sweep --config=configs/sweeps/muon_gpt.py --workdir=runs/muon_gpt
        --config.base.data.name=text:path/to/tinyshakespeare.txt

MEASURED
"""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.training.config import from_file


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    return from_file(pathlib.Path(__file__).with_name("muon.py"), scale, "gpt")
