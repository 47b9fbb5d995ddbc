"""Parameters without compiling an initialization, which takes longer than what tests compute; short trainings."""

import flax.linen as nn
import jax
import numpy as np
import optax


def drawn(model, x):
    """Parameters that are all off their initial values, of size 1/4, which suits tens of features, and norms near 1."""
    random = np.random.default_rng(5)
    draw = lambda path, leaf: (path[-1].key == "scale") + 0.25 * random.normal(size=leaf.shape)
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), x))["params"]
    return jax.tree_util.tree_map_with_path(lambda path, leaf: draw(path, leaf).astype(leaf.dtype), shapes)


def updated(optimizer, params, gradients):
    """Parameters after a step for each of the gradients."""
    state = optimizer.init(params)
    for g in gradients:
        updates, state = optimizer.update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params


def descend(loss, optimizer, params, steps):
    """The loss ``params -> scalar`` before each training step."""

    def step(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    return jax.lax.scan(step, (params, optimizer.init(params)), None, length=steps)[1]
