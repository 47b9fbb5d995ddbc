"""ResNet-18 without any norm on ImageNet (B24 Fig. B.6): SGD with momentum 0.9, 5 epochs of batch 128.

    depthmup train --config=imagenet_resnet18 --workdir=runs/imagenet_resnet18

Reads TFDS's imagenet2012 or, with --config.data.name=folder:DIR, ImageNet's files (docs/input.md). Not run on ImageNet
itself. Small scale, on 20 classes of Tiny ImageNet (10,000 images of 64 pixels), for two epochs at a quarter of the
width: train loss 2.655 at 0.003, 2.528 at 0.01, 2.557 at 0.03 (one seed each). Four epochs at 0.02: training loss of
the last 2.265, test accuracy 33.8 % (one seed, 106 seconds on 2 shared CPU cores):

    depthmup train --config=imagenet_resnet18 --workdir=runs/resnet18_small
        --config.data.name=folder:path/to/tiny-imagenet-200 --config.data.image_size=64 --config.model.width=16
        --config.train.epochs=4 --config.data.augment=imagenet
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("resnet")
    # The figure's depth extrapolations of ResNet-18 are --config.model.depth=16, 32, ...
    config.model.update(width=64, depth=8, base_width=16, base_depth=8, stem="imagenet", norm="none")
    config.data.update(name="tfds:imagenet2012", image_size=224, augment="resized_crop")
    config.optimizer.update(name="momentum", learning_rate=0.02)
    config.optimizer.kwargs.momentum = 0.9
    config.train.update(batch_size=128, epochs=5.0)
    return config
