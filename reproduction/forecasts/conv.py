"""The convolutional ResNet of sweeps/lr_width_depth_conv at the rate of sweeps/trade_off."""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file(pathlib.Path(__file__).parents[1] / "configs/sweeps/lr_width_depth_conv.py", "cpu").base
    config.optimizer.learning_rate = 0.046
    return config
