"""The residual MLP of sweeps/cifar10 at the best rate of its base, 64 x 4."""

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file("sweeps/cifar10", "cpu").base
    config.optimizer.learning_rate = 0.0039
    return config
