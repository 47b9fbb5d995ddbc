"""Parameters of a model without compiling its initialization, which takes longer than what tests compute with them."""

import flax.linen as nn
import jax
import numpy as np


def drawn(model, x):
    """Parameters that are all off their initial values, of size 1/4, which suits tens of features, and norms near 1."""
    random = np.random.default_rng(5)
    draw = lambda path, leaf: (path[-1].key == "scale") + 0.25 * random.normal(size=leaf.shape)
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), x))["params"]
    return jax.tree_util.tree_map_with_path(lambda path, leaf: draw(path, leaf).astype(leaf.dtype), shapes)
