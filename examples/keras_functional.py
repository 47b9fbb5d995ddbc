"""A Keras 3 model, unchanged, with the JAX backend: the audit reads `stateless_call`, and a loop trains it.

    pip install keras && python examples/keras_functional.py

`model.fit` takes optimizers of Keras, which have one learning rate for all variables.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"  # before keras is imported

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
from keras import layers

import depthmup_flax as dm


def network(width, depth):
    """A residual MLP of 8 numbers."""
    keras.utils.clear_session()  # layers are numbered from 0 in every model
    x = keras.Input((8,))
    h = layers.Dense(width)(x)
    for _ in range(depth):
        h = h + layers.Dense(width, activation="relu")(layers.LayerNormalization()(h))
    return keras.Model(x, layers.Dense(1)(h))


def as_function(model):
    """The forward pass as a function of parameters, and the parameters by path, as JAX sorts dictionaries."""
    states = [variable.value for variable in model.non_trainable_variables]

    def apply(params, x):
        values = [params[variable.path] for variable in model.trainable_variables]
        return model.stateless_call(values, states, x)[0]

    return apply, {variable.path: variable.value for variable in model.trainable_variables}


def main(width: int = 128, depth: int = 8, steps: int = 30) -> list[float]:
    """Trains on a function of two of the numbers; returns the losses."""
    x = np.random.default_rng(0).normal(size=(256, 8)).astype(np.float32)
    y = np.sin(x[:, :1] * x[:, 1:2])
    rule = dm.get_parametrization("depth_mup")
    model, base = network(width, depth), network(16, 4)
    (apply, params), (_, base_params) = as_function(model), as_function(base)
    audit = dm.audit(as_function(model), as_function(base), x)
    params = dm.rescale_init(params, base_params, audit.info, rule)
    optimizer = dm.adamw(1e-2, audit.info, rule)
    print(audit)

    @jax.jit
    def step(params, opt_state):
        loss, gradients = jax.value_and_grad(lambda params: jnp.mean((apply(params, x) - y) ** 2))(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state, losses = optimizer.init(params), []
    for _ in range(steps):
        params, opt_state, loss = step(params, opt_state)
        losses.append(float(loss))
    for variable in model.trainable_variables:  # back into the model, for model.predict and model.save
        variable.assign(params[variable.path])
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
