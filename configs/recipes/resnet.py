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
    config.model.update(width=128, depth=8, base_width=32, base_depth=4, norm="batch")
    config.data.update(name="tfds:cifar10", augment="imagenet+cutmix")
    config.label_smoothing = 0.1
    config.optimizer.update(name="momentum", learning_rate=0.1, schedule="cosine", warmup_steps=30)
    config.train.update(batch_size=64, steps=300, average_steps=30, ema_decay=0.98)
    return config
