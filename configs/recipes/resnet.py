"""A ResNet with BatchNorm as people train one today: momentum, warm-up and cosine, label smoothing, cutmix, an average.

    depthmup tune --config=recipes/resnet --tune=learning_rate --workdir=runs/resnet_tune
    depthmup train --config=runs/resnet_tune/tuned.py --workdir=runs/resnet

CIFAR-10 is prepared once (docs/training.md).

Measured on 16 x 16 pixels: tuned at 16 x 4 (width x depth; 18 runs, --seeds=2, 4 minutes of two busy cores): rate 0.060
(95 % interval 0.025 to 0.15). Trained at 64 x 8, which is ResNet-18 with 11.2 million parameters, a run of 36 times the
work, with one seed: test loss 1.750 (accuracy 36.7 %), of the average 1.764. Training loss of the last 50 steps 2.090;
with preset "sp" at the same rate 2.098, which is no difference in so few steps.
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("resnet")
    config.model.update(width=64, depth=8, base_width=16, base_depth=4, norm="batch")
    config.data.update(name="tfds:cifar10", image_size=16, augment="imagenet+cutmix")
    config.label_smoothing = 0.1
    config.optimizer.update(name="momentum", learning_rate=0.1, schedule="cosine", warmup_steps=25)
    config.train.update(batch_size=32, steps=250, average_steps=25, ema_decay=0.98)
    return config
