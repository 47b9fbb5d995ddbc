"""ResNet-18 without any norm on ImageNet (B24 Fig. B.6): SGD with momentum 0.9, 5 epochs of batch 128.

python train.py --config=configs/imagenet_resnet18.py --workdir=runs/imagenet_resnet18
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("resnet")
    # The figure's depth extrapolations of ResNet-18 are --config.model.depth=16, 32, ...
    config.model.update(width=64, depth=8, base_width=16, base_depth=8, stem="imagenet", norm="none")
    config.data.update(name="tfds:imagenet2012", image_size=224, augment="imagenet")
    config.optimizer.update(name="momentum", learning_rate=0.01)
    config.optimizer.kwargs.momentum = 0.9
    config.train.update(batch_size=128, epochs=5.0)
    return config
