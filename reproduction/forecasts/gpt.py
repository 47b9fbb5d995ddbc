"""The GPT of sweeps/megatron at the best rate of its base, 32 x 2."""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file(pathlib.Path(__file__).parents[1] / "configs/sweeps/megatron.py", "cpu").base
    config.optimizer.learning_rate = 0.028
    return config
