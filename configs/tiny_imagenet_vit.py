"""A vision transformer on Tiny ImageNet with Adam (B24 Fig. 3 (a)-(c)): 20 epochs of batch 64, 1000 warm-up steps.

python train.py --config=configs/tiny_imagenet_vit.py --workdir=runs/vit --config.data.name=folder:tiny-imagenet-200
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("vit")
    # No norm, as in Fig. 3 (a); --config.model.norm=layer is the figure's other half.
    config.model.update(width=256, depth=12, base_width=64, base_depth=4, patch_size=8, num_heads=4, norm="none")
    config.data.update(name="folder:tiny-imagenet-200", augment="imagenet")
    config.optimizer.update(name="adam", learning_rate=1e-3, warmup_steps=1000)
    config.train.update(batch_size=64, epochs=20.0)
    return config
