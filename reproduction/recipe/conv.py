"""A SimpleResNet of width 32 and depth 3, at its best rate: CIFAR-10 at 8 x 8 pixels, SGD."""

import pathlib

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file(pathlib.Path(__file__).parents[1] / "configs/sweeps/lr_width_depth_conv.py", "cpu").base
    config.model.update(width=32, depth=3, base_width=32, base_depth=3, norm="layer")
    config.data.image_size = 8
    config.optimizer.update(learning_rate=0.15, schedule="cosine", warmup_steps=20)
    config.train.update(batch_size=32, steps=300, average_steps=30)
    return config
