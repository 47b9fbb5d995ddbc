"""B24's convolutional ResNet on CIFAR-10 with SGD (Fig. 1, App. A.1, A.4): 20 epochs of batch 64, augmented.

python train.py --config=configs/cifar10_resnet.py --workdir=runs/cifar10_resnet
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
