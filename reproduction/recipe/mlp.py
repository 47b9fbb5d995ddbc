"""A residual MLP of width 32 and depth 4, at its best rate: CIFAR-10 at 16 x 16 pixels, Adam."""

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file("sweeps/cifar10", "cpu").base
    config.model.update(width=32, depth=4, base_width=32, base_depth=4)
    config.optimizer.update(learning_rate=0.0095, warmup_steps=60)
    config.train.update(steps=600, average_steps=60, log_every=60)
    return config
