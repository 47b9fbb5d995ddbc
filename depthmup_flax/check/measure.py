"""Trains a network for a few steps, and records the size of activations, changes and updates."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Container, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup_flax.check.layers import Collapse, SizedNetwork, groups_of_parameter
from depthmup_flax.check.networks import Activations, Network, Traced
from depthmup_flax.check.records import AT_ONCE, BRANCHES, EVERYTHING, LEAST_UPDATE, MOST_UPDATE, OUTPUT, Record, Size
from depthmup_flax.devices.host import drawing_options
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role
from depthmup_flax.util.types import ArrayTree

Loss = Callable[[jax.Array], jax.Array]
_Key = tuple[str, str]  # quantity, name
_ALONE_STEPS = 2  # of a group that trains alone


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The measurement of one network: all parameters train together, then groups of them alone.

    All parameters train from a readout at zero (unless it is frozen). A group trains from a readout of the rule's
    scale, as no other group gets a gradient through zeros, and outputs would move less and less through a readout that
    shrinks with width.

    One program trains all groups and seeds: groups one after another, seeds together. Convolutions are slow under
    ``vmap`` on CPU, so seeds of a network that has some also take turns.
    """

    network: SizedNetwork
    loss: Loss
    rule: Parametrization
    steps: int
    seeds: int
    alone: frozenset[str] | None  # parameters, by collapsed name, whose groups train alone; None: all

    @property
    def size(self) -> Size:
        """The size of the network."""
        return self.network.size

    @functools.cached_property
    def groups(self) -> dict[str, list[bool]]:
        """Group -> whether each parameter trains; `AT_ONCE` is for those whose first update is the same alone."""
        collapse = self.network.collapse
        own = {path: groups_of_parameter(path, leaf, collapse) for path, leaf in self.network.info.items()}
        trained = {group for names in own.values() for group in names}
        alone = trained
        if self.alone is not None:
            alone = {names[0] for path, names in own.items() if collapse(path) in self.alone} | trained & {BRANCHES}
        together = [EVERYTHING, *([AT_ONCE] if alone < trained else [])]
        return {
            group: [group in together or group in names for names in own.values()]
            for group in [*together, *sorted(alone)]
        }

    @property
    def lengths(self) -> list[int]:
        """The training steps of every group."""
        return [self.steps] + [min(self.steps, _ALONE_STEPS)] * (len(self.groups) - 1)

    @property
    def keys(self) -> list[_Key]:
        """What is recorded at every step, in order."""
        shapes, info = self.network.traced.shapes, self.network.info
        return [
            *[(quantity, name) for quantity in ("activation", "change") for name in shapes],
            ("aligned", OUTPUT),
            *[(quantity, path) for quantity in ("update", "gradient_update", "gradient") for path in info],
        ]

    @property
    def _arguments(self) -> tuple[np.ndarray, list[np.ndarray | None]]:
        """Seeds, and a `_random_readout` or ``None`` for each parameter."""
        outputs = self.network.traced.shapes[OUTPUT].shape[-1:]
        readouts = [_random_readout(leaf, self.rule, outputs) for leaf in self.network.info.values()]
        return np.arange(self.seeds), readouts

    def lowered(self) -> jax.stages.Lowered:
        """The program, not compiled yet: other threads may compile it."""
        trains_GxP, lengths_G = np.array(list(self.groups.values())), np.array(self.lengths)
        run = _program(self.network.traced, self.loss, self.keys, trains_GxP, lengths_G)
        return run.lower(*self._arguments)

    def records(self, compiled: jax.stages.Compiled) -> list[Record]:
        """Runs the program."""
        groups, info = list(self.groups), self.network.info
        squares_GxNxSxK, starts = jax.device_get(compiled(*self._arguments))
        records = []
        for group, seed in itertools.product(range(len(groups)), range(self.seeds)):
            sizes = dict(zip(self.keys, np.sqrt(squares_GxNxSxK[group, seed].T), strict=True))
            for quantity, squares_GxNxP in starts.items():
                rms_P = np.sqrt(squares_GxNxP[group, seed])
                sizes |= {(quantity, path): rms[None] for path, rms in zip(info, rms_P, strict=True)}
            sizes = _uncarried(sizes, info)
            trains = zip(info, self.groups[groups[group]], strict=True)
            untrained = {path for path, trained in trains if not trained}
            for (quantity, name), values in _collapsed(sizes, untrained, self.network.collapse).items():
                length = self.lengths[group]
                for step in _steps_recorded(quantity, group, length):
                    # The update of a step is computed from the gradient before it.
                    value = float(values[step - (quantity in _OF_UPDATES)])
                    records.append(Record(*self.size, seed, groups[group], step, quantity, name, value))
        return records


def _uncarried(sizes: Mapping[_Key, np.ndarray], info: Mapping[str, ParamInfo]) -> dict[_Key, np.ndarray]:
    """The sizes of activations in the same network with its carried factors in the code (see `ParamInfo`)."""
    factors = _carried_activations(sizes, info)
    result = {}
    for (quantity, name), values in sizes.items():
        factor = 1.0
        if quantity in ("activation", "change"):
            factor = factors.get(name, 1.0)
        if not math.isnan(factor):
            result[quantity, name] = values / factor
    return result


def _carried_activations(sizes: Mapping[_Key, np.ndarray], info: Mapping[str, ParamInfo]) -> dict[str, float]:
    """Name of an activation -> the factor that carrying parameters have put into it.

    That is what a module of such parameters returns, and what modules around it return unchanged. NaN, if a module has
    several factors, or is a table: the factor that the code then has may be inside or behind it.
    """
    start = {name: float(values[0]) for (quantity, name), values in sizes.items() if quantity == "activation"}
    factors: dict[str, float] = {}
    modules = {path.rpartition("/")[0] for path in info}
    around = {above for module in modules for above in itertools.accumulate(module.split("/")[:-1], "{}/{}".format)}
    for path, leaf in info.items():
        module = path.rpartition("/")[0]
        is_readout = leaf.role is Role.OUTPUT and not leaf.in_branch  # behind it, the outputs have their size
        if leaf.carries and module in start and module not in around and not is_readout:
            c = leaf.carried if isinstance(leaf.carried, float) and leaf.role is not Role.INPUT else math.nan
            factors[module] = c if factors.get(module, c) == c else math.nan
    for name, size in start.items() if factors else ():
        same = [f for module, f in factors.items() if size and math.isclose(start[module], size, rel_tol=1e-6)]
        if same and name != OUTPUT:
            factors = factors | {name: same[0]}
    return factors


_OF_UPDATES = ("update", "gradient_update", LEAST_UPDATE, MOST_UPDATE)
_OF_TRAINED = (*_OF_UPDATES, "gradient", "decay")  # recorded for the parameters that train


def _steps_recorded(quantity: str, group: int, length: int) -> range:
    """The steps of a run at which a quantity is recorded."""
    if quantity == "weight":  # at the start, where only the readout differs between groups
        return range(int(group == 0))
    if quantity in ("gradient", "decay"):  # at the start, through a random readout
        return range(int(group > 0))
    return range(0 if quantity == "activation" else 1, length + 1)


def _collapsed(
    sizes: Mapping[_Key, np.ndarray], untrained: Container[str], collapse: Collapse
) -> dict[_Key, np.ndarray]:
    """RMS over the layers of one collapsed name, without rounding errors, and extremes of their updates."""
    together: dict[_Key, list[np.ndarray]] = {}
    for (quantity, name), values_S in sizes.items():
        if quantity in _OF_TRAINED and name in untrained:
            continue
        is_rounding = np.zeros_like(values_S, bool)
        if quantity in ("change", "aligned"):  # rounding errors along one direction are smaller
            is_rounding = values_S < (1e-5 if quantity == "change" else 1e-7) * sizes["activation", name][0]
        elif quantity == "gradient_update":  # decay itself changes a little from step to step
            is_rounding = values_S < 1e-3 * sizes["update", name]
        together.setdefault((quantity, collapse(name)), []).append(np.where(is_rounding, 0.0, values_S))
    of_layers = {key: np.stack(layers).astype(np.float64) for key, layers in together.items()}
    # The mean would hide one wrong layer among many.
    extremes = {
        (quantity, name): extreme(values_LxS, axis=0)
        for (measured, name), values_LxS in of_layers.items()
        if measured == "gradient_update" and len(values_LxS) > 1
        for quantity, extreme in ((LEAST_UPDATE, np.min), (MOST_UPDATE, np.max))
    }
    return {key: np.sqrt(np.mean(np.square(values_LxS), axis=0)) for key, values_LxS in of_layers.items()} | extremes


def _program(
    traced: Traced, loss: Loss, keys: Sequence[_Key], trains_GxP: np.ndarray, lengths_G: np.ndarray
) -> jax.stages.Wrapped:
    """A function of N seeds and the `_random_readout` of every parameter.

    It returns mean squares ``[groups, N, steps + 1, keys]``, and those of `_initial_values` ``[groups, N, P]``.
    Activations are recorded in the forward pass of the gradient, so the program has only one.
    """
    network, info = traced.network, flatten_info(traced.network.info)
    carried = [leaf.factor for leaf in info.values()]
    # Of the network with its carried factors in the code.
    uncarried = lambda arrays: {path: x / c for path, x, c in zip(info, arrays, carried, strict=True)}
    rounds_G = lengths_G + 1  # the last one records the activations after the last step
    # Inside the loop: JAX traces a loop under `jax.vmap` several times.
    each = (lambda of_one: of_one) if traced.convolves else jax.vmap

    def forward(params: ArrayTree) -> tuple[jax.Array, Activations]:
        outputs, activations = network.apply(params)
        return loss(outputs), {**activations, OUTPUT: outputs}

    def train(
        group: jax.Array, readouts: Sequence[jax.Array | None], seeds: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        trains_P = jnp.asarray(trains_GxP)[group]
        stored = {**traced.shapes, _SLOPE: traced.shapes[OUTPUT]}

        def begin(seed: jax.Array) -> tuple:
            first, decays, squares_P = _initial_values(network, readouts, seed, group == 0)
            zeros = {name: jnp.zeros(x.shape, x.dtype) for name, x in stored.items()}
            squares_SxK = jnp.zeros((rounds_G.max(), len(keys)))
            return (first, network.optimizer.init(first), zeros, squares_SxK), decays, squares_P

        def step(i: jax.Array, carry: tuple, decays: list[jax.Array]) -> tuple:
            params, state, start, squares_SxK = carry
            grads, now = jax.grad(forward, has_aux=True)(params)
            now_and_slope = {**now, _SLOPE: jax.grad(loss)(now[OUTPUT])}
            start |= {name: jnp.where(i == 0, x, start[name]) for name, x in now_and_slope.items()}
            updates, state = network.optimizer.update(grads, state, params)
            leaves, tree = jax.tree.flatten(updates)
            leaves = [jnp.where(trains, u, jnp.zeros_like(u)) for trains, u in zip(trains_P, leaves, strict=True)]
            by_path = {
                "update": uncarried(leaves),
                "gradient": {path: x * c for path, x, c in zip(info, jax.tree.leaves(grads), carried, strict=True)},
                "decay": uncarried(decays),
            }
            new = optax.apply_updates(params, jax.tree.unflatten(tree, leaves))
            return new, state, start, squares_SxK.at[i].set(jnp.stack(_squares(keys, start, now, by_path)))

        carry, decays, squares_P = each(begin)(seeds)
        steps = lambda i, carry: each(functools.partial(step, i))(carry, decays)
        return jax.lax.fori_loop(0, jnp.asarray(rounds_G)[group], steps, carry)[-1], squares_P

    def measured(seeds: jax.Array, readouts: Sequence[jax.Array | None]) -> tuple[jax.Array, dict[str, jax.Array]]:
        of_seeds = lambda group: functools.partial(train, group, readouts)
        of_group = lambda group: jax.lax.map(of_seeds(group), seeds) if traced.convolves else of_seeds(group)(seeds)
        return jax.lax.map(of_group, np.arange(len(lengths_G)))

    return jax.jit(measured, compiler_options=drawing_options(jax.default_backend()))


_SLOPE = "slope of the loss"  # the gradient of the loss by the outputs, at the start


def _initial_values(
    network: Network, readouts: Sequence[jax.Array | None], seed: jax.Array, zero_readout: jax.Array
) -> tuple[ArrayTree, list[jax.Array], dict[str, jax.Array]]:
    """The parameters to train, their updates by decay alone, and mean squares [P] of initial values and of decay."""
    own = network.init(jax.random.key(seed))
    leaves, structure = jax.tree.flatten(own)
    # A readout that the optimizer freezes does not start at zero.
    updates, _ = network.optimizer.update(jax.tree.map(jnp.ones_like, own), network.optimizer.init(own), own)
    moves = [jnp.any(u != 0) for u in jax.tree.leaves(updates)]
    start_leaves = [
        leaf if random is None else jnp.where(zero_readout & moved, jnp.zeros_like(leaf), _rescaled(leaf, random))
        for leaf, random, moved in zip(leaves, readouts, moves, strict=True)
    ]
    start = jax.tree.unflatten(structure, start_leaves)
    decay, _ = network.optimizer.update(jax.tree.map(jnp.zeros_like, own), network.optimizer.init(start), start)
    decays = [jnp.nan_to_num(u) for u in jax.tree.leaves(decay)]
    rates = [_mean_square(u) / jnp.maximum(_mean_square(w), 1e-30) for u, w in zip(decays, start_leaves, strict=True)]
    infos = flatten_info(network.info).values()
    weights = [_mean_square(w / leaf.factor) for w, leaf in zip(leaves, infos, strict=True)]
    return start, decays, {"weight": jnp.stack(weights), "decay": jnp.stack(rates)}


def _squares(
    keys: Sequence[_Key], start: Activations, now: Activations, by_path: Mapping[str, Mapping[str, jax.Array]]
) -> list[jax.Array]:
    """The square of the number of every key at one step."""
    change = lambda name: now[name].astype(jnp.float32) - start[name].astype(jnp.float32)
    squares: dict[str, Callable[[str], jax.Array]] = {
        "activation": lambda name: _mean_square(now[name]),
        "change": lambda name: _mean_square(change(name)),
        "aligned": lambda name: _mean_square(_part_along(start[_SLOPE].astype(jnp.float32), change(name))),
        "update": lambda path: _mean_square(by_path["update"][path]),
        "gradient_update": lambda path: _mean_square(by_path["update"][path] - by_path["decay"][path]),
        "gradient": lambda path: _mean_square(by_path["gradient"][path]),
    }
    return [squares[quantity](name) for quantity, name in keys]


def _part_along(direction: jax.Array, x: jax.Array) -> jax.Array:
    return direction * (jnp.vdot(x, direction) / jnp.maximum(jnp.vdot(direction, direction), 1e-30))


def _random_readout(leaf: ParamInfo, rule: Parametrization, outputs: tuple[int, ...]) -> np.ndarray | None:
    """Values of the rule's standard deviation for a readout's weights; ``None`` for other parameters.

    Weights are ``[..., out]``, or ``[out, ...]``, as in Equinox, if only the first dimension is the network's outputs.
    """
    if leaf.role is not Role.OUTPUT or leaf.in_branch:
        return None
    shape = leaf.shape
    into = shape[1:] if shape[:1] == outputs != shape[-1:] else shape[:-1]
    std = rule.readout_fan_in(math.prod(into), leaf.width_in) ** -0.5 * leaf.factor
    values = np.random.default_rng(0).standard_normal(leaf.shape, np.float32)
    return values * np.float32(std / np.sqrt(np.mean(values**2)))


def _rescaled(leaf: jax.Array, random: jax.Array) -> jax.Array:
    """``leaf`` with the size of ``random``; ``random`` if ``leaf`` is zero."""
    square = _mean_square(leaf)
    scale = jnp.sqrt(_mean_square(random) / jnp.where(square > 0, square, 1.0))
    return jnp.where(square > 0, leaf * scale.astype(leaf.dtype), random.astype(leaf.dtype))


def _mean_square(x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(x.astype(jnp.float32)))
