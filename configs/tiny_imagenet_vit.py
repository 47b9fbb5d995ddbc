"""A vision transformer on Tiny ImageNet with Adam (B24 Fig. 3 (a)-(c)): 20 epochs of batch 64, 1000 warm-up steps.

    depthmup train --config=tiny_imagenet_vit --workdir=runs/vit
        --config.data.name=folder:path/to/tiny-imagenet-200

docs/input.md has the commands that move its images into class folders.
Figure 3 (d) has 2000 warm-up steps and a cosine over 100 epochs (--config.optimizer.schedule=cosine). The paper prints
no patch size, width or rate. Tried at the base for 600 steps (200 of warm-up; train loss, one seed, 20 of the 200
classes): 2.265 at 1e-3, 2.232 at 3e-3. Small scale on those 20 classes (10,000 images), 175 to 230 seconds on 2 shared
CPU cores: training loss of the last of 4 epochs 2.29 +- 0.06, test accuracy 34 % +- 3 (n = 2 seeds, standard
deviation):

    depthmup train --config=tiny_imagenet_vit --workdir=runs/vit_small --config.model.width=64
        --config.model.depth=4 --config.optimizer.warmup_steps=200 --config.train.epochs=4
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
