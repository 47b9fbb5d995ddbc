"""A vision transformer without any norm on ImageNet with Adam (B24 Fig. 3 (e), (f)): 10 epochs of batch 64.

    depthmup train --config=imagenet_vit --workdir=runs/imagenet_vit

Reads TFDS's imagenet2012 or, with --config.data.name=folder:DIR, ImageNet's files (docs/input.md). Not run on ImageNet
itself; the rate is the one of tiny_imagenet_vit.py. Small scale, on 20 classes of Tiny ImageNet (10,000 images of 64
pixels), 60 to 105 seconds on 2 shared CPU cores: training loss of the last of 4 epochs 2.463 +- 0.004, test accuracy
25.1 % +- 1.2 (n = 2 seeds, standard deviation; 16 patches are few):

    depthmup train --config=imagenet_vit --workdir=runs/imagenet_vit_small
        --config.data.name=folder:path/to/tiny-imagenet-200 --config.data.image_size=64 --config.model.width=64
        --config.model.depth=4 --config.optimizer.warmup_steps=200 --config.train.epochs=4
        --config.data.augment=imagenet
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("vit")
    config.model.update(width=384, depth=12, base_width=64, base_depth=4, patch_size=16, num_heads=4, norm="none")
    config.data.update(name="tfds:imagenet2012", image_size=224, augment="resized_crop")
    config.optimizer.update(name="adam", learning_rate=1e-3, warmup_steps=1000)
    config.train.update(batch_size=64, epochs=10.0)
    return config
