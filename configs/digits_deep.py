"""Rule against no rule in a minute: scikit-learn's digits, tuned on a residual MLP of 32x4, trained at 128x128.

depthmup tune --config=digits_deep --compare=sp

"""

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config() -> ConfigDict:
    """The configuration: `digits`, deeper, wider and shorter."""
    config = from_file("digits")
    config.model.update(width=128, depth=128, base_width=32, base_depth=4)
    config.train.update(batch_size=64, steps=200, average_steps=50, log_every=50, eval_every=100)
    return config
