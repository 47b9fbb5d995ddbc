"""A user's own training loop, by optax alone, to compare runs with."""

import functools

import jax
import numpy as np
import optax


def loss_of(model, params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y).mean()


@functools.cache
def _update_of(optimizer_of, model):
    """A step, compiled once for all ``numbers``."""

    @jax.jit
    def update(numbers, params, state, x, y):
        loss, grads = jax.value_and_grad(functools.partial(loss_of, model))(params, x, y)
        updates, state = optimizer_of(*numbers).update(grads["params"], state, params["params"])
        return {"params": optax.apply_updates(params["params"], updates)}, state, loss

    return update


def trained(optimizer_of, numbers, model, seed, x, labels, steps, rescale_init=lambda params: params):
    """The mean training loss of the last fifth of steps of 10 examples, and the loss as a function of examples."""
    update, params = _update_of(optimizer_of, model), model.init(jax.random.key(seed), x[:1])
    params = {"params": rescale_init(params["params"])}
    state, losses = optimizer_of(*numbers).init(params["params"]), []
    for step in range(steps):
        epoch, position = divmod(step, len(x) // 10)
        rows = np.random.default_rng((seed, epoch)).permutation(len(x))[10 * position :][:10]
        params, state, loss = update(numbers, params, state, x[rows], labels[rows])
        losses.append(float(loss))
    return np.mean(losses[-(steps // 5) :]), functools.partial(loss_of, model, params)
