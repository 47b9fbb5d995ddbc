"""B24's convolutional ResNet on CIFAR-10 with SGD (Fig. 1, App. A.1, A.4): 20 epochs of batch 64, augmented.

    depthmup train --config=cifar10_resnet --workdir=runs/cifar10_resnet

The figures have depths 3 to 30 and widths to 512. Prepare the data once (docs/training.md) and set its directory with
--config.data.data_dir. Small scale, 160 to 210 seconds on 2 CPU cores: training loss of the third epoch 1.49 +- 0.03,
test accuracy 51.4 % +- 1.8 (n = 3 seeds, standard deviation):

    depthmup train --config=cifar10_resnet --workdir=runs/resnet_small --config.model.width=64
        --config.model.depth=12 --config.train.epochs=3

The rate is the best of a factor-2 grid at the base after one epoch (test loss 1.594 at 0.023, 1.534 at 0.046, 1.589 at
0.092; one seed), and the one that B24 App. B.1 prints.
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("simple_resnet")
    # B24's learning curves go to width 512 and depth 30; tuning happens at the base.
    config.model.update(width=512, depth=30, base_width=64, base_depth=6)
    config.data.update(name="tfds:cifar10", augment="cifar")
    config.optimizer.update(name="sgd", learning_rate=0.046)  # B24 App. B.1
    config.train.update(batch_size=64, epochs=20.0)
    return config
