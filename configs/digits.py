"""A residual MLP on scikit-learn's 8x8 digits, the data that needs no download.

python train.py --config=configs/digits.py --workdir=runs/digits
"""

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("res_mlp")
    config.model.update(width=128, depth=16, base_width=64, base_depth=8)
    config.optimizer.learning_rate = 1e-3
    config.train.update(epochs=30.0, batch_size=32, log_every=92, eval_every=230)
    return config
