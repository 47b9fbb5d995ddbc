"""Training a network for a few steps and writing down how large everything is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup_flax.coord_check.networks import Network
from depthmup_flax.rule.info_trees import flatten_info, is_info
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role

OUTPUT = "output"
EVERYTHING = "everything"  # all parameters train, from a readout at zero
BRANCHES = "branches"  # all parameters inside residual branches
BRANCH_VECTORS, OTHER_VECTORS = "vectors in branches", "vectors outside"
ALONE_STEPS = 2  # of a group that trains alone

_WEIGHT_NAMES = ("kernel", "embedding", "weight", "w")


@dataclasses.dataclass(frozen=True)
class Record:
    """One number of one network.

    Attributes:
      axis: ``width`` or ``depth``, what the check varies.
      size: the value of that.
      width, depth: of the network.
      seed: of its initial values.
      group: which parameters train.
      step: optimizer steps taken.
      quantity: ``weight`` (RMS of a parameter), ``activation`` (RMS), ``mean`` (RMS of an activation's mean over its
        last axis, at step 0), ``change`` (RMS of an activation's change since step 0), ``update`` (RMS of a
        parameter's last change), ``update_norm`` (the largest spectral norm of its matrices over the last two axes).
      name: the activation or parameter, indices of layers as ``*``.
      value: the number.
    """

    axis: str
    size: int
    width: int
    depth: int
    seed: int
    group: str
    step: int
    quantity: str
    name: str
    value: float


def group_names(info: Any, collapse: Callable[[str], str]) -> list[list[str]]:
    """For every parameter, in the order of the tree, the groups that it trains in (`EVERYTHING` left out)."""
    found = []
    for path, leaf in flatten_info(info).items():
        if leaf.role in (Role.VECTOR, Role.FIXED):
            names = [BRANCH_VECTORS if leaf.in_branch else OTHER_VECTORS]
        else:
            names = [group_of(path, collapse)]
        found.append([*names, BRANCHES] if leaf.in_branch else names)
    return found


def group_of(path: str, collapse: Callable[[str], str]) -> str:
    """The group of a weight: its module's path, with layer indices collapsed."""
    parent, _, last = collapse(path).rpartition("/")
    return parent if parent and last in _WEIGHT_NAMES else collapse(path)


def measure(
    network: Network,
    loss: Callable[[jax.Array], jax.Array],
    rule: Parametrization,
    *,
    steps: int,
    seeds: int,
    spectral: bool,
    collapse: Callable[[str], str],
) -> list[dict[str, Any]]:
    """Records (fields seed, group, step, quantity, name, value) of one network: everything trained, and each group.

    Everything trains from a readout at zero (unless it is frozen), a group from one of the rule's scale, whatever the
    network starts with: behind a readout at zero no other group would get a gradient, behind one that shrinks with
    width the outputs would move ever less.

    One compilation; seeds and groups one after another, because convolutions under ``vmap`` are slow on CPU.
    """
    paths = list(flatten_info(network.info))
    membership = group_names(network.info, collapse)
    groups = [EVERYTHING, *sorted({name for names in membership for name in names})]
    trains = np.array([[i == 0 or group in names for names in membership] for i, group in enumerate(groups)])
    stds = [_readout_std(leaf, rule) for leaf in _leaves(network.info)]
    lengths = np.array([steps] + [min(steps, ALONE_STEPS)] * (len(groups) - 1))
    run = _runner(network, loss, steps, jnp.array(trains), stds, jnp.array(lengths), spectral)
    pairs = [(seed, group) for seed in range(seeds) for group in range(len(groups))]
    result = jax.device_get(run(jnp.array(pairs)))
    records: list[dict[str, Any]] = []
    for i, (seed, group) in enumerate(pairs):
        common = {"seed": seed, "group": groups[group]}
        for quantity, by_name in result.items():
            trained = [p for p, t in zip(paths, trains[group], strict=True) if t]
            wanted = trained if quantity.startswith("update") else by_name
            for name, values in _collapsed({n: by_name[n][i] for n in wanted if n in by_name}, collapse).items():
                if quantity in ("weight", "mean"):
                    if group == 0:  # the same for every group, or nearly
                        records.append(
                            {**common, "step": 0, "quantity": quantity, "name": name, "value": float(values)}
                        )
                    continue
                first = 0 if quantity == "activation" else 1
                last = lengths[group]
                for step in range(first, last + 1):
                    value = float(values[step - first])
                    records.append({**common, "step": step, "quantity": quantity, "name": name, "value": value})
    return records


def _runner(
    network: Network,
    loss: Callable[[jax.Array], jax.Array],
    steps: int,
    trains_GxP: jax.Array,
    readout_stds: Sequence[float | None],
    lengths_G: jax.Array,
    spectral: bool,
) -> Callable[[jax.Array], dict[str, dict[str, jax.Array]]]:
    """(seed, group) pairs -> quantity -> name -> ``[pairs, steps]`` (one more step for activations)."""
    paths = list(flatten_info(network.info))

    def forward(params: Any) -> dict[str, jax.Array]:
        outputs, activations = network.apply(params)
        # A module that only passes the outputs on adds nothing.
        return {**activations, OUTPUT: outputs}

    def sizes(tree: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {name: _rms(x) for name, x in tree.items()}

    def train(pair: jax.Array) -> dict[str, dict[str, jax.Array]]:
        seed, group = pair
        leaves, structure = jax.tree.flatten(network.init(jax.random.key(seed)))
        initial_weights = {path: _rms(leaf) for path, leaf in zip(paths, leaves, strict=True)}
        trained = _trained(network, jax.tree.unflatten(structure, leaves))
        starting = [
            leaf if std is None else jnp.where((group == 0) & moves, jnp.zeros_like(leaf), _rescaled(leaf, std))
            for leaf, std, moves in zip(leaves, readout_stds, trained, strict=True)
        ]
        params = jax.tree.unflatten(structure, starting)
        start = forward(params)

        def step(carry: Any) -> tuple[Any, dict[str, dict[str, jax.Array]]]:
            params, state = carry
            grads = jax.grad(lambda p: loss(network.apply(p)[0]))(params)
            updates, state = network.optimizer.update(grads, state, params)
            leaves, tree = jax.tree.flatten(updates)
            leaves = [jnp.where(trains_GxP[group, i], u, jnp.zeros_like(u)) for i, u in enumerate(leaves)]
            params = optax.apply_updates(params, jax.tree.unflatten(tree, leaves))
            now = forward(params)
            named = dict(zip(paths, leaves, strict=True))
            found = {
                "activation": sizes(now),
                "change": {name: _change(now[name], start[name]) for name in now},
                "update": sizes(named),
            }
            if spectral:
                found["update_norm"] = {
                    path: jnp.linalg.norm(u.reshape(-1, *u.shape[-2:]), ord=2, axis=(-2, -1)).max()
                    for path, u in named.items()
                    if u.ndim >= 2
                }
            return (params, state), found

        carry = (params, network.optimizer.init(params))
        shapes = jax.eval_shape(step, carry)[1]

        def step_if_needed(carry: Any, i: jax.Array) -> tuple[Any, Any]:
            skip = lambda c: (c, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))
            return jax.lax.cond(i < lengths_G[group], step, skip, carry)

        _, found = jax.lax.scan(step_if_needed, carry, jnp.arange(steps))
        at_start = sizes(start)
        found["activation"] = {
            name: jnp.concatenate([at_start[name][None], values]) for name, values in found["activation"].items()
        }
        means = {name: _rms(x.astype(jnp.float32).mean(-1)) for name, x in start.items() if x.ndim}
        return {**found, "weight": initial_weights, "mean": means}

    return jax.jit(lambda pairs: jax.lax.map(train, pairs))


def _trained(network: Network, params: Any) -> list[jax.Array]:
    """Whether the optimizer moves a parameter at all; a frozen readout must not start at zero."""
    updates, _ = network.optimizer.update(jax.tree.map(jnp.ones_like, params), network.optimizer.init(params), params)
    return [jnp.any(u != 0) for u in jax.tree.leaves(updates)]


def _readout_std(leaf: ParamInfo, rule: Parametrization) -> float | None:
    """The rule's standard deviation of a readout's weights ``[..., out]``; ``None`` for other parameters."""
    if leaf.role is not Role.OUTPUT or leaf.in_branch:
        return None
    return rule.readout_fan_in(math.prod(leaf.shape[:-1]), leaf.width_in) ** -0.5


def _rescaled(leaf: jax.Array, std: float) -> jax.Array:
    rms = _rms(leaf)
    random = std * jax.random.normal(jax.random.key(0), leaf.shape, leaf.dtype)
    return jnp.where(rms > 0, leaf * (std / rms).astype(leaf.dtype), random)


def _rms(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32))))


def _change(now: jax.Array, start: jax.Array) -> jax.Array:
    """RMS of the difference; 0 below 1e-5 of the start: two compilations of one function round differently."""
    change = _rms(now.astype(jnp.float32) - start.astype(jnp.float32))
    return jnp.where(change < 1e-5 * _rms(start), 0.0, change)


def _leaves(info: Any) -> list[ParamInfo]:
    return jax.tree.leaves(info, is_leaf=is_info)


def _collapsed(values: dict[str, Any], collapse: Callable[[str], str]) -> dict[str, Any]:
    """Root mean square over the layers that share a collapsed name."""
    together: dict[str, list[Any]] = {}
    for name, value in values.items():
        together.setdefault(collapse(name), []).append(value)
    return {
        name: np.sqrt(np.mean(np.square(np.stack(group), dtype=np.float64), axis=0))[()]
        for name, group in together.items()
    }
