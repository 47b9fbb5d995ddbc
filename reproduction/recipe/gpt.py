"""A GPT of width 16 and depth 2, at its best rate: characters of Tiny Shakespeare, Adam."""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file(pathlib.Path(__file__).parents[1] / "configs/sweeps/megatron.py", "cpu").base
    config.model.update(width=16, depth=2, base_width=16, base_depth=2)
    config.optimizer.update(learning_rate=0.044)
    config.train.update(batch_size=8)
    return config
