"""A first demonstration: tuned on a network of 32x4, trained at 128x128, with the rule and without, on digits.

    depthmup tune --config=digits_deep --tune=learning_rate --compare=sp --seeds=5

30 seconds of processor time. A residual MLP without normalization, every layer trained, 200 steps, scikit-learn's 1500
images. Test accuracy of the target at the proxy's rate: 97.9 % +- 0.4 under Depth-muP, 9.8 % +- 0.4, which is chance,
under the standard parametrization (n = 5 seeds, standard deviation), whose first losses are of order 1e8. At the
proxy's size both are the same network.

With a LayerNorm before each branch (--config.model.norm=layer) it trains, but not well at the proxy's rate: 93.3 % +-
2.1, and 97.8 % +- 0.5 under Depth-muP (n = 5). The target alone, at the rate that the first command finds:

    depthmup train --config=digits_deep --workdir=runs/deep --config.optimizer.learning_rate=0.0034
"""

from ml_collections import ConfigDict

from depthmup_flax.config import from_file


def get_config() -> ConfigDict:
    """The configuration: `digits`, deeper and shorter."""
    config = from_file("digits")
    config.model.update(width=128, depth=128, base_width=32, base_depth=4)
    config.train.update(batch_size=64, steps=200, average_steps=50, log_every=50, eval_every=100)
    return config
