"""Steps of programs in Flax and Optax alone, in the style of big_vision: layers one after another, no remat."""

from __future__ import annotations

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
    model, (x, y) = network(case), _batch(case)
    optimizer = optax.adamw(RATE, weight_decay=0.01)

    @jax.jit
    def init() -> Any:
        params = model.init(jax.random.key(0), x[:1])
        return params, optimizer.init(params)

    def update(state: Any, x: jax.Array, y: jax.Array) -> Any:
        params, moments = state

        def loss(params: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y).mean()

        updates, moments = optimizer.update(jax.grad(loss)(params), moments, params)
        return optax.apply_updates(params, updates), moments

    state = init()
    compiled = jax.jit(update, donate_argnums=0).lower(state, x, y).compile()

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state = compiled(state, x, y)
        jax.block_until_ready(state)

    measure = repeated(run, seconds)
    facts = {"parameters": sum(p.size for p in jax.tree.leaves(state[0])), "bytes": bytes_of(compiled)}
    return lambda: {**measure(), **facts}


def network(case: Case) -> nn.Module:
    """The network of ``case``."""
    fields: dict[str, Any] = {"num_heads": case.heads, "classes": case.classes, "dtype": case.dtype}
    if case.network == "gpt":
        return plain.GPT(case.width, case.depth, **fields)
    return plain.ViT(case.width, case.depth, patch_size=16, scan=False, **fields)


def _batch(case: Case) -> tuple[jax.Array, jax.Array]:
    """Inputs, and labels below ``case.classes``."""
    keys = jax.random.split(jax.random.key(1))
    if case.network == "gpt":
        tokens = jax.random.randint(keys[0], (case.batch, case.size + 1), 0, case.classes)
        return tokens[:, :-1], tokens[:, 1:]
    images = jax.random.normal(keys[0], (case.batch, case.size, case.size, 3), jnp.float32)
    return images, jax.random.randint(keys[1], (case.batch,), 0, case.classes)
