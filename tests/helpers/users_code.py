"""Data, losses and training steps as a user writes them, for configs that name them by import path."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import depthmup_flax as dm
from depthmup_flax import Task

RNG = np.random.default_rng(0)
TEACHER = RNG.normal(size=(6, 2)).astype(np.float32)


def _split(size, rng):
    x = rng.normal(size=(size, 6)).astype(np.float32)
    return x, np.tanh(x @ TEACHER)


def load():
    """70 training and 23 test examples, which no batch divides: 6 numbers, 2 targets."""
    return _split(70, np.random.default_rng(1)), _split(23, np.random.default_rng(2))


def load_classes():
    """50 and 17 examples of 5 numbers, 3 classes."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(67, 5)).astype(np.float32)
    labels = np.argmax(x[:, :3], -1).astype(np.int32)
    return (x[:50], labels[:50]), (x[50:], labels[50:])


def load_thirds():
    """The same examples with 3 numbers as targets."""
    (x, _), (test_x, _) = load_classes()
    return (x, np.sin(x[:, :3])), (test_x, np.sin(test_x[:, :3]))


def load_with_unknown_label():
    (x, labels), test = load_classes()
    labels[3] = -1
    return (x, labels), test


def with_auxiliary(outputs, targets):
    return jnp.mean(outputs), {"a": 1}


def decayed_step(width, depth):
    """A step whose optimizer state has another structure without decay."""

    def optimizer(hyper):
        decay = hyper["decay"]
        without = isinstance(decay, (int, float)) and decay == 0
        return optax.chain(optax.trace(0.9), *([] if without else [optax.add_decayed_weights(decay)]))

    def init(key, hyper):
        params = new_params(key, width)
        return {"params": params, "optimizer": optimizer(hyper).init(params)}

    def step(state, batch, hyper):
        value, grads = jax.value_and_grad(lambda p: jnp.mean((network(p, batch[0]) - batch[1]) ** 2))(state["params"])
        updates, new = optimizer(hyper).update(grads, state["optimizer"], state["params"])
        params = jax.tree.map(lambda p, u: p - hyper["learning_rate"] * u, state["params"], updates)
        return {"params": params, "optimizer": new}, {"loss": value}

    return Task(init, step)


def loss(outputs, targets):
    return jnp.mean(jnp.square(outputs - targets)) + 0.01 * jnp.mean(jnp.abs(outputs))


def vector_loss(outputs, targets):
    return jnp.mean(jnp.square(outputs - targets), axis=-1)


def failing_loss(outputs, targets):
    raise KeyError("of the user")


def noisy_loss(outputs, targets):
    return jnp.mean(jnp.square(outputs - targets)) * np.random.default_rng().uniform()


def network(params, x):
    return jnp.tanh(x @ params["first"]) @ params["last"]


def new_params(key, width):
    first, last = jax.random.split(key)
    return {
        "first": jax.random.normal(first, (6, width)) / 6**0.5,
        "last": jax.random.normal(last, (width, 2)) / width**0.5,
    }


def momentum_step(width, depth):
    """Momentum written out, noise on the gradient by a key in the state, a function and a number in the state."""

    def init(key, hyper):
        params = new_params(key, width)
        velocity = jax.tree.map(jnp.zeros_like, params)
        return {"params": params, "velocity": velocity, "key": key, "network": network, "power": 2}

    def gradient_loss(params, batch, state):
        x, y = batch
        return jnp.mean(jnp.abs(state["network"](params, x) - y) ** state["power"])

    def step(state, batch, hyper):
        key, noise = jax.random.split(state["key"])
        value, grads = jax.value_and_grad(gradient_loss)(state["params"], batch, state)
        grads["last"] += 1e-3 * jax.random.normal(noise, grads["last"].shape)
        velocity = jax.tree.map(lambda v, g: hyper["friction"] * v + g, state["velocity"], grads)
        params = jax.tree.map(lambda p, v: p - hyper["learning_rate"] * v, state["params"], velocity)
        return {**state, "params": params, "velocity": velocity, "key": key}, {"loss": value}

    def evaluate(state, batch, hyper):
        return {"loss": gradient_loss(state["params"], batch, state), "largest": jnp.abs(batch[0]).mean()}

    return Task(init, step, evaluate)


def steps_down(steps):
    """A schedule: a quarter of the rate in the second half."""
    return optax.piecewise_constant_schedule(1.0, {steps // 2: 0.25})


def steps_wrongly(steps):
    return 1.0


def chain(info, rule, learning_rate, weight_decay=0.0):
    """An optimizer."""
    return optax.chain(optax.clip(0.01), dm.adamw(learning_rate, info, rule, weight_decay=weight_decay))


def open_chain(info, rule, learning_rate, **options):
    """The same, which takes every option."""
    return optax.chain(optax.clip(0.01), dm.adamw(learning_rate, info, rule, **options))


def _with(step, init=lambda key, hyper: jnp.zeros(3), evaluate=None):
    return lambda width, depth: Task(init, step, evaluate)


_LOSS = {"loss": 0.0}
_counter = itertools.count()

# Name -> a task with one mistake in it.
only_a_state = _with(lambda state, batch, hyper: state)
no_loss = _with(lambda state, batch, hyper: (state, {"error": 0.0}))
other_shape = _with(lambda state, batch, hyper: (state[:2], _LOSS))
other_type = _with(lambda state, batch, hyper: (state.astype(jnp.float16), _LOSS))
other_structure = _with(lambda state, batch, hyper: ((state, state), _LOSS))
counts_outside = _with(lambda state, batch, hyper: (state + next(_counter), _LOSS))
random_by_numpy = _with(lambda state, batch, hyper: (state + RNG.normal(), _LOSS))
counts_in_python = _with(
    lambda state, batch, hyper: ({"x": state["x"], "n": state["n"] + 1}, _LOSS),
    lambda key, hyper: {"x": jnp.zeros(3), "n": 0},
)
reads_unset = _with(lambda state, batch, hyper: (state * hyper["temperature"], _LOSS))
bad_evaluate = _with(lambda state, batch, hyper: (state, _LOSS), evaluate=lambda state, batch, hyper: 3.0)


def _raise(state, batch, hyper):
    raise ValueError("shapes do not fit")


raises = _with(_raise)
sgd = _with(
    lambda params, batch, hyper: (
        optax.apply_updates(
            params,
            jax.tree.map(
                lambda g: -hyper["learning_rate"] * g,
                jax.grad(lambda p: jnp.mean((network(p, batch[0]) - batch[1]) ** 2))(params),
            ),
        ),
        {"loss": jnp.mean((network(params, batch[0]) - batch[1]) ** 2)},
    ),
    lambda key, hyper: new_params(key, 8),
)
