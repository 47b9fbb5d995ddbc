"""A ResNet with BatchNorm as people train one today: momentum, warm-up and cosine, label smoothing, cutmix, an average.

    depthmup tune --config=recipes/resnet --tune=learning_rate --workdir=runs/resnet_tune
    depthmup train --config=runs/resnet_tune/tuned.py --workdir=runs/resnet

CIFAR-10 is prepared once (docs/training.md).
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("resnet")
    config.model.update(width=32, depth=16, base_width=8, base_depth=8, norm="batch")
    config.data.update(name="tfds:cifar10", augment="imagenet+cutmix")
    config.label_smoothing = 0.1
    config.optimizer.update(name="momentum", learning_rate=0.1, schedule="cosine", warmup_steps=50)
    config.train.update(batch_size=64, steps=1000, average_steps=100, ema_decay=0.99)
    return config
