"""TP6's residual MLP on CIFAR-10 with Adam (sec. 10.2, Fig. 10, top): stem and readout stay at their initial values.

    depthmup train --config=cifar10_resmlp --workdir=runs/cifar10_resmlp

The figure has depths 8 to 1024 (--config.model.depth). Prepare the data once (docs/training.md) and set its directory
with --config.data.data_dir. Small scale, 35 seconds on 2 CPU cores, 10 of them to read the images: training loss of
the last 1000 steps 1.206 +- 0.004, test accuracy 48.9 % +- 0.7 (n = 3 seeds, standard deviation):

    depthmup train --config=cifar10_resmlp --workdir=runs/resmlp_small --config.model.depth=16
        --config.train.epochs=3
"""

import math

from ml_collections import ConfigDict

from depthmup_flax.config import default_config


def get_config() -> ConfigDict:
    """The configuration."""
    config = default_config("res_mlp")
    config.model.update(width=256, depth=64, base_width=256, base_depth=8)
    # Tuned at depth 8: log2 a = 1, log2(eta / 1e-3) = 0 (TP6 Fig. 10). The figure's a belongs to L^-1/2, not to
    # (L/8)^-1/2: with a = 2 / sqrt(8) a run starts well, with 2 its first epoch's loss at depth 64 averages 43.
    config.parametrization.branch_multiplier = 2 / math.sqrt(8)
    config.data.update(name="tfds:cifar10")
    config.optimizer.update(name="adam", learning_rate=1e-3, frozen=("stem", "readout"))
    config.train.update(batch_size=64, epochs=50.0, average_steps=1000)  # the figure averages over 1000 steps
    return config
