"""LoRA over its rank: the audit's factors against one rate for both matrices, by the best rate of a fine-tuning.

python -m reproduction.pages.lora_rank

A residual MLP is trained on one linear teacher; then only LoRA's matrices A (normal, 1/fan_in) and B (zeros) train on
another one, at four ranks. The exponent of the best rate in the rank is 0 if the rate transfers.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import depthmup_flax as dm

WIDTH, LAYERS, INPUTS, CLASSES, BATCH = 64, 2, 32, 10, 64
RANKS, BASE_RANK = (4, 8, 16, 32), 4
PRETRAINING, STEPS, SEEDS = 300, 200, 4
RATES = dm.powers_of_two(-13, -3, 0.5)


def frozen_shapes() -> dict[str, Any]:
    """Of the network that LoRA adapts."""
    square = (WIDTH, WIDTH)
    blocks = {f"block_{i}": {"up": square, "down": square} for i in range(LAYERS)}
    return {"stem": (INPUTS, WIDTH), "head": (WIDTH, CLASSES), **blocks}


def lora_shapes(rank: int) -> dict[str, Any]:
    """Of the matrices that train."""
    pair = {"a": (WIDTH, rank), "b": (rank, WIDTH)}
    return {f"block_{i}": {"up": pair, "down": pair} for i in range(LAYERS)}


def initial(key: jax.Array, shapes: dict[str, Any]) -> Any:
    """Normal with 1/fan_in; zeros for B."""
    flat, tree = jax.tree_util.tree_flatten_with_path(shapes, is_leaf=lambda x: isinstance(x, tuple))
    keys = jax.random.split(key, len(flat))
    draw = lambda key, path, s: jax.random.normal(key, s) * s[0] ** -0.5 * (path[-1].key != "b")
    return jax.tree.unflatten(tree, [draw(key, path, shape) for key, (path, shape) in zip(keys, flat, strict=True)])


def logits(params: Any, x: jax.Array) -> jax.Array:
    """``params``: the frozen ones and, under ``lora``, those of `lora_shapes`."""

    def product(h: jax.Array, block: str, name: str) -> jax.Array:
        y = h @ params[block][name]
        return y + h @ params["lora"][block][name]["a"] @ params["lora"][block][name]["b"] if "lora" in params else y

    h = x @ params["stem"]
    for block in sorted(name for name in params if name.startswith("block")):
        y = h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6)
        h = h + product(jax.nn.relu(product(y, block, "up")), block, "down")
    return h @ params["head"]


def loss(trained: Any, frozen: Any, teacher: jax.Array, key: jax.Array) -> jax.Array:
    """Of a new batch, labeled by the teacher."""
    x = jax.random.normal(key, (BATCH, INPUTS))
    outputs = logits({**frozen, "lora": trained} if frozen else trained, x)
    return optax.softmax_cross_entropy_with_integer_labels(outputs, (x @ teacher).argmax(-1)).mean()


def train(optimizer: optax.GradientTransformation, params: Any, frozen: Any, teacher: jax.Array, steps: int) -> Any:
    """The trained parameters and the mean loss of the last fifth."""

    def step(carry: Any, i: jax.Array) -> Any:
        params, state = carry
        key = jax.random.fold_in(jax.random.key(7), i)
        value, grads = jax.value_and_grad(loss)(params, frozen, teacher, key)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    (params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(steps))
    return params, losses[-steps // 5 :].mean()


def best_rates(rank: int, *, ruled: bool) -> tuple[np.ndarray, np.ndarray]:
    """log2 of the best rate, by a parabola, and the lowest loss, of each seed."""
    whole = lambda rank: jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, jnp.float32),
        {**frozen_shapes(), "lora": lora_shapes(rank)},
        is_leaf=lambda x: isinstance(x, tuple),
    )
    x, rule = jax.ShapeDtypeStruct((BATCH, INPUTS), jnp.float32), dm.get_parametrization()
    info = dm.audit((logits, whole(rank)), (logits, whole(BASE_RANK)), x).info["lora"] if ruled else None

    def run(seed: jax.Array, rate: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.key(seed), 4)
        teachers = (jax.random.normal(key, (INPUTS, CLASSES)) for key in keys[:2])
        frozen, _ = train(optax.adam(3e-3), initial(keys[2], frozen_shapes()), None, next(teachers), PRETRAINING)
        optimizer = optax.adam(rate) if info is None else dm.adamw(rate, info, rule)
        return train(optimizer, initial(keys[3], lora_shapes(rank)), frozen, next(teachers), STEPS)[1]

    of_rates = jax.vmap(run, (None, 0))
    losses = np.array([jax.jit(of_rates)(seed, jnp.asarray(RATES)) for seed in range(SEEDS)])
    losses = np.where(np.isfinite(losses), losses, np.inf)
    best = np.clip(losses.argmin(1), 1, len(RATES) - 2)
    log2 = []
    for curve, k in zip(losses, best, strict=True):
        left, middle, right = curve[k - 1 : k + 2]
        curvature = left - 2 * middle + right
        log2.append(np.log2(RATES[k]) + 0.5 * (0.5 * (left - right) / curvature if 0 < curvature < np.inf else 0.0))
    return np.array(log2), losses.min(1)


def main() -> None:
    """Prints the exponents with their standard errors over seeds."""
    for ruled in (True, False):
        found = [best_rates(rank, ruled=ruled) for rank in RANKS]
        slopes = np.polyfit(np.log2(RANKS), np.stack([log2 for log2, _ in found]), 1)[0]
        error = functools.partial(np.std, ddof=1)(slopes) / SEEDS**0.5
        print(f"{'audit' if ruled else 'one rate'}: best rate ~ rank^{slopes.mean():+.2f} +- {error:.2f} (n = {SEEDS})")
        for rank, (log2, lowest) in zip(RANKS, found, strict=True):
            print(f"  rank {rank}: best rate 2^{log2.mean():.2f}, loss {lowest.mean():.4f} +- {lowest.std(ddof=1):.4f}")


if __name__ == "__main__":
    main()
