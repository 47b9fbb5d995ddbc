"""Twelve faults in loops of one's own, each in one place, beside healthy runs: what `dm.record_course` sees of them.

    python -m reproduction.course.loops OUT [NETWORK ...]

Writes OUT/NETWORK.jsonl: network, fault, size, seed and the columns of each run. Two networks test the limits (`TEST`)
and were first trained after these were committed; the others calibrated them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx, traverse_util
from sklearn.datasets import load_digits

import depthmup_flax as dm
from depthmup_flax.rule.recorded import recorded_columns
from examples import linen_scan_vit, nnx_text
from reproduction.course import networks

RULE = dm.get_parametrization("depth_mup")
STEPS, WARMUP, BATCH, DECAY = 32, 8, 64, 0.1
HEALTHY = "healthy"
Params = dict[str, Any]


class Plain(nn.Module):
    """``[B, 64] -> [B, 10]``: a residual MLP without norm or factors."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """The logits."""
        h = nn.Dense(self.width, name="stem")(x)
        for i in range(self.depth):
            h = h + nn.Dense(self.width, use_bias=False, name=f"block_{i}")(nn.relu(h))
        return nn.Dense(10, name="head")(h)


class GatedBlock(nnx.Module):
    """RMSNorm, and three matrices."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.gate, self.up = (nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs) for _ in range(2))
        self.down = nnx.Linear(2 * width, width, use_bias=False, rngs=rngs)

    def __call__(self, h: Any) -> Any:
        """What the block adds."""
        x = self.norm(h)
        return self.down(nnx.silu(self.gate(x)) * self.up(x))


class Gated(nnx.Module):
    """The last characters, one-hot ``[B, CONTEXT * characters]``, to the logits of the next; in plain NNX."""

    def __init__(self, width: int, depth: int, rngs: nnx.Rngs) -> None:
        size = characters()[0].max() + 1
        self.stem = nnx.Linear(CONTEXT * int(size), width, rngs=rngs)
        self.blocks = nnx.List([GatedBlock(width, rngs) for _ in range(depth)])
        self.norm, self.head = nnx.RMSNorm(width, rngs=rngs), nnx.Linear(width, int(size), use_bias=False, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """The logits."""
        h = self.stem(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.norm(h))


CONTEXT = 8


@functools.cache
def characters() -> tuple[np.ndarray, np.ndarray]:
    """Windows of `CONTEXT` characters of the source of Python's argparse, and the next one of each."""
    _, codes = np.unique(list(pathlib.Path(argparse.__file__).read_text(encoding="utf-8")), return_inverse=True)
    windows = np.lib.stride_tricks.sliding_window_view(codes.astype(np.int32), CONTEXT + 1)
    return windows[:, :-1], windows[:, -1]


def symbols() -> np.ndarray:
    """The numbers of the characters of `characters`."""
    return characters()[1]


def one_hot_characters() -> tuple[Any, Any]:
    """`characters` as inputs of `Gated`."""
    x, y = characters()
    return jax.nn.one_hot(x, x.max() + 1).reshape(len(x), -1), y


def digit_images() -> tuple[Any, Any]:
    """Images and labels of scikit-learn's digits."""
    digits = load_digits()
    return np.asarray(digits.images[..., None] / 16.0, np.float32), digits.target.astype(np.int32)


def of_linen(model: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """A Linen model: (its audited form, function of parameters, initial values)."""

    def built(width: int, depth: int, x: Any) -> tuple[Any, Any, Any]:
        net = model(width, depth)
        return net, lambda params, x: net.apply({"params": params}, x), lambda key: net.init(key, x)["params"]

    return built


def of_nnx(model: Callable[..., Any]) -> Callable[[int, int], Any]:
    """The same of an NNX model, whose parameters are a state."""

    def built(width: int, depth: int, x: Any) -> tuple[Any, Any, Any]:
        net = nnx.eval_shape(lambda: model(width, depth, nnx.Rngs(0)))
        graph, variables, rest = nnx.split(net, nnx.Param, ...)

        def apply(params: Any, x: Any) -> Any:
            state = jax.tree.map(lambda x: x, variables)
            nnx.replace_by_pure_dict(state, params)
            return nnx.merge(graph, state, rest)(x)

        def fresh(key: Any) -> Any:
            return nnx.to_pure_dict(nnx.state(model(width, depth, nnx.Rngs(key)), nnx.Param))

        return net, apply, fresh

    return built


@dataclasses.dataclass(frozen=True)
class Network:
    """How a network is built, its data, sizes with the base first, rate, and a matrix and a block that may be wrong."""

    built: Callable[..., Any]
    data: Callable[[], tuple[Any, Any]]
    sizes: Sequence[tuple[int, int]]
    rate: float
    matrix: str  # path of a hidden matrix
    block: str  # part of the paths of a block
    layer: int | None = None  # of a stack: the layer of both


NETWORKS: Mapping[str, Network] = {
    "plain MLP": Network(
        of_linen(Plain), lambda: networks.digits()[0], [(16, 4), (64, 8)], 4e-3, "block_5/kernel", "block_3/"
    ),
    "transformer": Network(
        of_nnx(networks.nnx_transformer.Transformer),
        lambda: networks.counting()[0],
        [(16, 2), (32, 6)],
        3e-3,
        "blocks/3/up/kernel",
        "blocks/2/",
    ),
    "gated MLP": Network(
        of_nnx(Gated), one_hot_characters, [(32, 2), (64, 6)], 4e-3, "blocks/4/up/kernel", "blocks/3/"
    ),
    "text transformer": Network(
        of_nnx(lambda width, depth, rngs: nnx_text.Transformer(width, depth, int(symbols().max()) + 1, rngs=rngs)),
        lambda: nnx_text.data(pathlib.Path(argparse.__file__))[0],
        [(32, 2), (64, 6)],
        3e-3,
        "blocks/3/down/kernel",
        "blocks/4/",
    ),
    "scanned ViT": Network(
        of_linen(linen_scan_vit.ViT),
        digit_images,
        [(16, 2), (64, 8)],
        3e-3,
        "blocks/Dense_1/kernel",
        "blocks/",
        layer=3,
    ),
}
TEST = ("gated MLP", "text transformer")


def on_part(tree: Params, network: Network, part: str, function: Callable[[Any], Any]) -> Params:
    """A tree whose arrays with ``part`` in their path (of a stack: whose layer) are replaced."""
    flat = traverse_util.flatten_dict(tree)

    def replaced(path: Sequence[Any], x: Any) -> Any:
        if part not in "/".join(map(str, path)):
            return x
        return function(x) if network.layer is None else x.at[network.layer].set(function(x[network.layer]))

    return traverse_util.unflatten_dict({path: replaced(path, x) for path, x in flat.items()})


@dataclasses.dataclass(frozen=True)
class Case:
    """What a lane of a compiled run has that may be wrong."""

    rate: float = 1.0
    warmup: bool = True
    decay: float = DECAY
    batch: int = BATCH
    matrix: float = 1.0  # times its update
    start: float = 1.0  # times its initial value
    block: float = 1.0  # times its update
    random: bool = False
    plain: bool = False  # optax's own optimizer


def cases(m: float) -> dict[str, Case]:
    """The faults that need no program of their own."""
    return {
        "no width factor on one matrix": Case(matrix=m),
        "one tensor's start doubled": Case(start=2.0),
        "one block frozen": Case(block=0.0),
        "random labels": Case(random=True),
        "batch of 16, not 64": Case(batch=16),
        "decay x 10": Case(decay=10 * DECAY),
        "rate x 2": Case(rate=2.0),
        "rate / 2": Case(rate=0.5),
        "warm-up forgotten": Case(warmup=False),
        "plain optax": Case(plain=True),
    }


OF_PROGRAMS = ("wrong base", "bf16 parameters")
FAULTS = (*cases(1.0), *OF_PROGRAMS)


def runs(name: str, size: tuple[int, int], lanes: Sequence[tuple[int, Case]], fault: str = "") -> list[dict[str, Any]]:
    """The columns of runs, each with a seed and a case, of the program of a ``fault``.

    ``gap`` is the loss with targets of another example minus the loss.
    """
    network = NETWORKS[name]
    x, y = map(jnp.asarray, network.data())
    shuffled = jax.random.permutation(jax.random.key(7), y)
    base_size = network.sizes[0]
    model, apply, fresh = network.built(*size, x[:2])
    wrong = fault == "wrong base"
    base, _, fresh_base = network.built(*((base_size[0] // 2, base_size[1] // 2) if wrong else base_size), x[:2])
    info = dm.audit(model, base, x[:2]).info

    def loss_of(params: Params, x: Any, y: Any, weights: Any) -> Any:
        losses = optax.softmax_cross_entropy_with_integer_labels(apply(params, x).astype(jnp.float32), y)
        return (losses.reshape(len(weights), -1).mean(1) * weights).sum()

    def train(seed: Any, case: Any) -> tuple[Any, Any]:
        keys = jax.random.split(jax.random.key(seed))
        rate = case["rate"] * network.rate
        warmed = lambda step: rate * jnp.where(case["warmup"], jnp.minimum(1.0, (step + 1) / WARMUP), 1.0)
        right, plain = dm.adamw(warmed, info, RULE, weight_decay=case["decay"]), optax.adamw(warmed, weight_decay=DECAY)

        def update(gradients: Params, states: Any, params: Params) -> tuple[Params, Any]:
            updates, state = right.update(gradients, states[0], params)
            without, other = plain.update(gradients, states[1], params)
            updates = jax.tree.map(lambda a, b: jnp.where(case["plain"], b, a), updates, without)
            updates = on_part(updates, network, network.matrix, lambda x: case["matrix"] * x)
            return on_part(updates, network, network.block, lambda x: case["block"] * x), (state, other)

        inner = optax.GradientTransformation(lambda params: (right.init(params), plain.init(params)), update)
        optimizer = dm.record_course(inner, info, RULE, batch_size=case["batch"], weight_decay=case["decay"])
        params = fresh(keys[0])
        if size != base_size:
            params = dm.rescale_init(params, fresh_base(keys[0]), info, RULE)
        params = on_part(params, network, network.matrix, lambda x: case["start"] * x)
        if fault == "bf16 parameters":
            params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
        weights = (jnp.arange(BATCH) < case["batch"]) / case["batch"]

        def step(carry: Any, key: Any) -> tuple[Any, Any]:
            params, state = carry
            rows = jax.random.randint(key, (BATCH,), 0, len(y))
            targets = jnp.where(case["random"], shuffled[rows], y[rows])
            value, grads = jax.value_and_grad(loss_of)(params, x[rows], targets, weights)
            gap = loss_of(params, x[rows], jnp.roll(targets, 1, axis=0), weights) - value
            updates, state = optimizer.update(grads, state, params, value=value)
            return (optax.apply_updates(params, updates), state), gap

        (_, state), gaps = jax.lax.scan(step, (params, optimizer.init(params)), jax.random.split(keys[1], STEPS))
        return state._replace(inner=None), gaps

    values = [dataclasses.asdict(case) for _, case in lanes]
    stacked = {field: jnp.array([value[field] for value in values]) for field in values[0]}
    states, gaps = jax.jit(jax.vmap(train))(jnp.array([seed for seed, _ in lanes]), stacked)
    found = []
    for i, (seed, _) in enumerate(lanes):
        columns = recorded_columns(jax.tree.map(lambda x, i=i: x[i], states))
        columns["gap"] = [round(float(gaps[i, step - 1]), 4) for step in columns["step"]]
        found.append({"network": name, "width": size[0], "depth": size[1], "seed": seed, "course": columns})
    return found


SEEDS, FAULT_SEEDS = 10, range(500, 503)


def main(out: str, *names: str) -> None:
    """Trains the runs of networks."""
    for name in names or NETWORKS:
        sizes, path = NETWORKS[name].sizes, pathlib.Path(out) / f"{name.replace(' ', '_')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        wrong = cases(sizes[-1][0] / sizes[0][0])
        with path.open("w") as file:
            for size, fault in [*((size, "") for size in sizes), *((sizes[-1], fault) for fault in OF_PROGRAMS)]:
                healthy = [(HEALTHY, seed, Case()) for seed in range(size[1] * 100, size[1] * 100 + SEEDS)]
                named = [] if fault else healthy
                of = {fault: Case()} if fault else wrong if size == sizes[-1] else {}
                named += [(label, seed, case) for label, case in of.items() for seed in FAULT_SEEDS]
                lanes = [(seed, case) for _, seed, case in named]
                try:
                    found = runs(name, size, lanes, fault)
                except dm.InputError as error:  # the optimizer says it before the first step
                    of_size = {"network": name, "width": size[0], "depth": size[1]}
                    found = [{**of_size, "seed": seed, "refused": str(error)} for seed, _ in lanes]
                for (label, _, _), record in zip(named, found, strict=True):
                    file.write(json.dumps({"fault": label, **record}) + "\n")
                file.flush()
                print(name, size, fault, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
