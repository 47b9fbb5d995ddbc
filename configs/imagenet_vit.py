"""A vision transformer without any norm on ImageNet with Adam (B24 Fig. 3 (e), (f)): 10 epochs of batch 64.

python train.py --config=configs/imagenet_vit.py --workdir=runs/imagenet_vit
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("vit")
    config.model.update(width=384, depth=12, base_width=64, base_depth=4, patch_size=16, num_heads=4, norm="none")
    config.data.update(name="tfds:imagenet2012", image_size=224, augment="imagenet")
    config.optimizer.update(name="adam", learning_rate=1e-3, warmup_steps=1000)
    config.train.update(batch_size=64, epochs=10.0)
    return config
