"""ResNet-18 on CIFAR-10 with SGD (B24 Fig. 2, App. A.2, A.4): BatchNorm, 20 epochs of batch 64, augmented.

    depthmup train --config=cifar10_resnet18 --workdir=runs/resnet18

Prepare the data once (docs/training.md) and set its directory with --config.data.data_dir. The paper prints no rate:
this one is between two tried at a quarter of the width for 300 steps (train loss 1.785 at 0.05, 1.783 at 0.2;
one seed). Small scale, 200 to 300 seconds on 2 shared CPU cores: training loss of the first epoch 1.528 +- 0.008, test
accuracy 52.2 % +- 1.4 (n = 2 seeds, standard deviation):

    depthmup train --config=cifar10_resnet18 --workdir=runs/resnet18_small --config.model.width=16
        --config.train.epochs=1
"""

import math

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("resnet")
    # ResNet-18; deeper ones are --config.model.depth=16, and so on. Tuned at a quarter of its width.
    config.model.update(width=64, depth=8, base_width=16, base_depth=8, norm="batch")
    config.parametrization.branch_multiplier = 3 / math.sqrt(8)  # the figure's 3 / sqrt(L), at the base depth
    config.data.update(name="tfds:cifar10", augment="cifar")
    config.optimizer.update(name="sgd", learning_rate=0.1)
    config.train.update(batch_size=64, epochs=20.0)
    return config
