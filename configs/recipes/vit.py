"""A ViT as people train one today: AdamW, warm-up and cosine, mixup, label smoothing, an average of the parameters.

    depthmup tune --config=recipes/vit --tune=learning_rate --workdir=runs/vit_tune --config.data.name=folder:DIR
    depthmup train --config=runs/vit_tune/tuned.py --workdir=runs/vit

DIR has ImageNet's layout.
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("vit")
    config.model.update(width=128, depth=6, base_width=32, base_depth=2, patch_size=16, num_heads=4)
    config.data.update(name="folder:data", image_size=64, augment="imagenet+mixup")
    config.label_smoothing = 0.1
    config.optimizer.update(name="adam", learning_rate=2e-3, weight_decay=0.05, schedule="cosine", warmup_steps=60)
    config.train.update(batch_size=64, steps=600, average_steps=60, ema_decay=0.99)
    return config
