"""Start here. Digits, which need no download: learning rate of a residual MLP over depth.

    depthmup sweep --config=sweeps/digits
    depthmup report

scikit-learn's 1500 images of 8 x 8 pixels, under Depth-muP and muP, every layer trained. In 200 steps of 64 images the
networks memorize them.
"""

from ml_collections import ConfigDict

from depthmup_flax import at_scale, powers_of_two, sweep_config
from depthmup_flax.config import default_config


def get_config(scale: str = "cpu") -> ConfigDict:
    """The sweep."""
    base = default_config("res_mlp")
    base.model.update(base_width=32, base_depth=4, width=32, depth=4)
    base.optimizer.update(name="adam", learning_rate=1e-3)
    base.train.update(
        batch_size=64,
        steps=at_scale(scale, smoke=20, cpu=200),
        average_steps=at_scale(scale, smoke=10, cpu=50),
        log_every=10,
    )
    grids = {
        "depths": {
            "parametrization.preset": ("depth_mup", "mup"),
            "model.depth": at_scale(scale, smoke=(4, 16), cpu=(4, 16, 64)),
            "optimizer.learning_rate": powers_of_two(-11, -5, at_scale(scale, smoke=3, cpu=1)),
            "seed": at_scale(scale, smoke=(0,), cpu=(0, 1, 2)),
        }
    }
    return sweep_config(
        base, grids, figure="digits", title="Learning rate over depth on handwritten digits", scale=scale
    )
