"""Training a network for a few steps, and recording the size of activations, changes and updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup_flax.coord_check.layer_names import Collapse, groups_of_parameter
from depthmup_flax.coord_check.networks import Activations, Network, Shapes
from depthmup_flax.coord_check.recorded_sizes import EVERYTHING, OUTPUT, Record, Size
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role
from depthmup_flax.types import ArrayTree

Loss = Callable[[jax.Array], jax.Array]
_Key = tuple[str, str]  # quantity, name
_ALONE_STEPS = 2  # of a group that trains alone


def measure(
    network: Network,
    shapes: Shapes,
    loss: Loss,
    rule: Parametrization,
    size: Size,
    *,
    steps: int,
    seeds: int,
    spectral: bool,
    collapse: Collapse,
) -> list[Record]:
    """The records of one network: all parameters trained together, and each group alone.

    All parameters train from a readout at zero (unless it is frozen); a group trains from a readout of the rule's
    scale, whatever the network's own. Behind a readout at zero no other group gets a gradient; behind one that shrinks
    with width, outputs move ever less.

    ``shapes`` are those of the activations and the output. Seeds and groups run one after another in one program:
    convolutions under ``vmap`` are slow on CPU.
    """
    info = flatten_info(network.info)
    membership = [groups_of_parameter(path, leaf, collapse) for path, leaf in info.items()]
    groups = [EVERYTHING, *sorted({group for names in membership for group in names})]
    trains_GxP = np.array([[group in (EVERYTHING, *names) for names in membership] for group in groups])
    lengths_G = np.array([steps] + [min(steps, _ALONE_STEPS)] * (len(groups) - 1))
    keys = _keys(shapes, info, spectral)
    pairs = np.array([(seed, group) for seed in range(seeds) for group in range(len(groups))])
    run = _compiled(network, shapes, loss, keys, trains_GxP, lengths_G)
    squares, weights = jax.device_get(run(pairs, [_random_readout(leaf, rule) for leaf in info.values()]))

    records = []
    for (seed, group), squares_SxK, weights_P in zip(pairs.tolist(), squares, weights, strict=True):
        sizes = dict(zip(keys, np.sqrt(squares_SxK.T), strict=True))
        sizes |= {("weight", path): rms[None] for path, rms in zip(info, np.sqrt(weights_P), strict=True)}
        untrained = {path for path, trains in zip(info, trains_GxP[group], strict=True) if not trains}
        for (quantity, name), values in _collapsed(sizes, untrained, collapse).items():
            steps_recorded = range(0 if quantity == "activation" else 1, lengths_G[group] + 1)
            if quantity in ("weight", "mean"):  # at the start, where groups differ in the readout alone
                steps_recorded = range(int(group == 0))
            for step in steps_recorded:
                # The update of a step is computed from the gradient before it.
                value = float(values[step - quantity.startswith("update")])
                records.append(Record(*size, seed, groups[group], step, quantity, name, value))
    return records


def _collapsed(
    sizes: Mapping[_Key, np.ndarray], untrained: Container[str], collapse: Collapse
) -> dict[_Key, np.ndarray]:
    """RMS over the layers that share a collapsed name; without updates of untrained parameters, rounding as 0."""
    together: dict[_Key, list[np.ndarray]] = {}
    for (quantity, name), values_S in sizes.items():
        if quantity.startswith("update") and name in untrained:
            continue
        is_rounding = quantity == "change" and values_S < 1e-5 * sizes["activation", name][0]
        together.setdefault((quantity, collapse(name)), []).append(np.where(is_rounding, 0.0, values_S))
    return {
        key: np.sqrt(np.mean(np.square(np.stack(layers), dtype=np.float64), axis=0)) for key, layers in together.items()
    }


def _keys(shapes: Shapes, info: Mapping[str, ParamInfo], spectral: bool) -> list[_Key]:
    """What is recorded at every step, in order."""
    return [
        *[(quantity, name) for quantity in ("activation", "change") for name in shapes],
        *[("mean", name) for name, x in shapes.items() if x.ndim],
        *[("update", path) for path in info],
        *[("update_norm", path) for path, leaf in info.items() if spectral and len(leaf.shape) >= 2],
    ]


def _compiled(
    network: Network, shapes: Shapes, loss: Loss, keys: Sequence[_Key], trains_GxP: np.ndarray, lengths_G: np.ndarray
) -> Callable[[np.ndarray, Sequence[np.ndarray | None]], tuple[jax.Array, jax.Array]]:
    """A function of (seed, group) pairs ``[N, 2]`` and the values of `_random_readout` for every parameter.

    It returns mean squares ``[N, steps + 1, keys]``, and those of the initial weights ``[N, P]``. The program has one
    forward and one backward pass: activations are recorded where the gradient is taken.
    """
    paths = list(flatten_info(network.info))

    def forward(params: ArrayTree) -> tuple[jax.Array, Activations]:
        outputs, activations = network.apply(params)
        return loss(outputs), {**activations, OUTPUT: outputs}

    def train(pair: jax.Array, readouts: Sequence[jax.Array | None]) -> tuple[jax.Array, jax.Array]:
        seed, group = pair
        params, weights_P = _initial_values(network, readouts, seed, group == 0)
        trains_P = jnp.asarray(trains_GxP)[group]
        zeros = {name: jnp.zeros(x.shape, x.dtype) for name, x in shapes.items()}
        squares_SxK = jnp.zeros((lengths_G.max() + 1, len(keys)))

        def step(i: jax.Array, carry: tuple) -> tuple:
            params, state, start, squares_SxK = carry
            grads, now = jax.grad(forward, has_aux=True)(params)
            start = {name: jnp.where(i == 0, x, start[name]) for name, x in now.items()}
            updates, state = network.optimizer.update(grads, state, params)
            leaves, tree = jax.tree.flatten(updates)
            leaves = [jnp.where(trains, u, jnp.zeros_like(u)) for trains, u in zip(trains_P, leaves, strict=True)]
            squares_K = jnp.stack(_squares(keys, start, now, dict(zip(paths, leaves, strict=True))))
            params = optax.apply_updates(params, jax.tree.unflatten(tree, leaves))
            return params, state, start, squares_SxK.at[i].set(squares_K)

        carry = (params, network.optimizer.init(params), zeros, squares_SxK)
        return jax.lax.fori_loop(0, jnp.asarray(lengths_G)[group] + 1, step, carry)[-1], weights_P

    return jax.jit(lambda pairs, readouts: jax.lax.map(lambda pair: train(pair, readouts), pairs))


def _initial_values(
    network: Network, readouts: Sequence[jax.Array | None], seed: jax.Array, zero_readout: jax.Array
) -> tuple[ArrayTree, jax.Array]:
    """The parameters to train, and the mean squares ``[P]`` of the network's own initial values."""
    own = network.init(jax.random.key(seed))
    leaves, structure = jax.tree.flatten(own)
    # A readout that the optimizer freezes must not start at zero.
    updates, _ = network.optimizer.update(jax.tree.map(jnp.ones_like, own), network.optimizer.init(own), own)
    moves = [jnp.any(u != 0) for u in jax.tree.leaves(updates)]
    start = [
        leaf if random is None else jnp.where(zero_readout & moved, jnp.zeros_like(leaf), _rescaled(leaf, random))
        for leaf, random, moved in zip(leaves, readouts, moves, strict=True)
    ]
    return jax.tree.unflatten(structure, start), jnp.stack([_mean_square(leaf) for leaf in leaves])


def _squares(
    keys: Sequence[_Key], start: Activations, now: Activations, updates: Mapping[str, jax.Array]
) -> list[jax.Array]:
    """The square of every key's number at one step."""
    squares: dict[str, Callable[[str], jax.Array]] = {
        "activation": lambda name: _mean_square(now[name]),
        "change": lambda name: _mean_square(now[name].astype(jnp.float32) - start[name].astype(jnp.float32)),
        "mean": lambda name: _mean_square(now[name].astype(jnp.float32).mean(-1)),
        "update": lambda path: _mean_square(updates[path]),
        "update_norm": lambda path: jnp.linalg.norm(updates[path], ord=2, axis=(-2, -1)).max() ** 2,
    }
    return [squares[quantity](name) for quantity, name in keys]


def _random_readout(leaf: ParamInfo, rule: Parametrization) -> np.ndarray | None:
    """Values of the rule's standard deviation for a readout's weights ``[..., out]``; ``None`` for other parameters."""
    if leaf.role is not Role.OUTPUT or leaf.in_branch:
        return None
    std = rule.readout_fan_in(math.prod(leaf.shape[:-1]), leaf.width_in) ** -0.5
    values = np.random.default_rng(0).standard_normal(leaf.shape, np.float32)
    return values * np.float32(std / np.sqrt(np.mean(values**2)))


def _rescaled(leaf: jax.Array, random: jax.Array) -> jax.Array:
    """``leaf`` with the size of ``random``; ``random`` if it is zero."""
    square = _mean_square(leaf)
    scale = jnp.sqrt(_mean_square(random) / jnp.where(square > 0, square, 1.0))
    return jnp.where(square > 0, leaf * scale.astype(leaf.dtype), random.astype(leaf.dtype))


def _mean_square(x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(x.astype(jnp.float32)))
