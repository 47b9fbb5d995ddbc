"""Steps of programs in Flax and Optax alone, in the style of big_vision: layers one after another, no remat."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from benchmarks import plain
from benchmarks.gpu.cases import Case
from benchmarks.gpu.ours import bytes_of
from benchmarks.timing import RATE, repeated


def step(seconds: float, **fields: Any) -> Callable[[], dict[str, float]]:
    """A contender: the training step of a `Case` of ``vit`` or ``gpt``."""
    case = Case(**fields)
    init, update = training(case)
    state, (x, y) = jax.jit(init)(), batch(case)
    compiled = jax.jit(update, donate_argnums=0).lower(state, x, y).compile()

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state = compiled(state, x, y)
        jax.block_until_ready(state)

    measure = repeated(run, seconds)
    facts = {"parameters": sum(p.size for p in jax.tree.leaves(state[0])), "bytes": bytes_of(compiled)}
    return lambda: {**measure(), **facts}


def training(case: Case) -> tuple[Callable[[], Any], Callable[[Any, jax.Array, jax.Array], Any]]:
    """``init()`` and ``update(state, x, y)``; a state is parameters, moments, and averages of BatchNorm."""
    model, optimizer = network(case), optax.adamw(RATE, weight_decay=0.01)

    def init() -> Any:
        variables = model.init(jax.random.key(0), batch(dataclasses.replace(case, batch=1))[0])
        params = variables.pop("params")
        return params, optimizer.init(params), variables

    def update(state: Any, x: jax.Array, y: jax.Array) -> Any:
        params, moments, averages = state

        def loss(params: Any) -> tuple[jax.Array, Any]:
            logits, after = model.apply({"params": params, **averages}, x, mutable=list(averages))
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), after

        gradients, averages = jax.grad(loss, has_aux=True)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments, averages

    return init, update


def network(case: Case) -> nn.Module:
    """The network of ``case``."""
    fields: dict[str, Any] = {"num_heads": case.heads, "classes": case.classes, "dtype": case.dtype}
    if case.network == "gpt":
        return plain.GPT(case.width, case.depth, **fields)
    if case.network == "resnet":
        return plain.ResNet(case.width, case.depth, case.classes, case.dtype)
    return plain.ViT(case.width, case.depth, patch_size=16, scan=False, **fields)


def batch(case: Case) -> tuple[jax.Array, jax.Array]:
    """Inputs, and labels below ``case.classes``."""
    keys = jax.random.split(jax.random.key(1))
    if case.network == "gpt":
        tokens = jax.random.randint(keys[0], (case.batch, case.size + 1), 0, case.classes)
        return tokens[:, :-1], tokens[:, 1:]
    images = jax.random.normal(keys[0], (case.batch, case.size, case.size, 3), jnp.float32)
    return images, jax.random.randint(keys[1], (case.batch,), 0, case.classes)
