"""Trains a network for a few steps, and records the size of activations, changes and updates."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup_flax.check.layers import Collapse, SizedNetwork, groups_of_parameter
from depthmup_flax.check.networks import Activations
from depthmup_flax.check.records import AT_ONCE, BRANCHES, EVERYTHING, LEAST_UPDATE, MOST_UPDATE, OUTPUT, Record, Size
from depthmup_flax.devices.host import drawing_options, drawn, drawn_each
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

    Seeds train together. Convolutions are slow under ``vmap`` on CPU, so seeds of a network that has some take turns.
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

    @functools.cached_property
    def _chunks(self) -> list[np.ndarray]:
        """Seeds that train together."""
        return np.array_split(np.arange(self.seeds), self.seeds if self.network.traced.convolves else 1)

    def lowered(self) -> Iterator[jax.stages.Lowered]:
        """The programs, not compiled yet: other threads may compile them."""
        network, loss = self.network.traced.network, self.loss

        def forward(params: ArrayTree) -> tuple[jax.Array, Activations]:
            outputs, activations = network.apply(params)
            return loss(outputs), {**activations, OUTPUT: outputs}

        def look(params: ArrayTree) -> tuple[ArrayTree, Activations]:
            grads, now = jax.grad(forward, has_aux=True)(params)
            return grads, {**now, _SLOPE: jax.grad(loss)(now[OUTPUT])}

        def move(grads: ArrayTree, state: ArrayTree, params: ArrayTree, trains: ArrayTree) -> tuple[ArrayTree, ...]:
            updates, state = network.optimizer.update(grads, state, params)
            updates = jax.tree.map(lambda on, u: jnp.where(on, u, jnp.zeros_like(u)), trains, updates)
            return optax.apply_updates(params, updates), state, updates

        keys = jax.eval_shape(jax.vmap(jax.random.key), self._chunks[0])
        params = jax.eval_shape(jax.vmap(network.init), keys)
        state = jax.eval_shape(jax.vmap(network.optimizer.init), params)
        trains = jax.tree.map(lambda _: np.True_, params)
        program = functools.partial(jax.jit, compiler_options=drawing_options(jax.default_backend()))
        yield program(jax.vmap(look)).lower(params)
        yield program(jax.vmap(move, (0, 0, 0, None))).lower(params, state, params, trains)

    def records(self, look: jax.stages.Compiled, move: jax.stages.Compiled) -> list[Record]:
        """Trains with the compiled programs."""
        groups, info = list(self.groups), self.network.info
        trained = [_trained(self, seeds, look, move) for seeds in self._chunks]
        squares_GxNxSxK, starts = jax.tree.map(lambda *chunks: np.concatenate(chunks, axis=1), *trained)
        records = []
        for group, seed in itertools.product(range(len(groups)), range(self.seeds)):
            sizes = dict(zip(self.keys, np.sqrt(squares_GxNxSxK[group, seed].T), strict=True))
            for quantity, squares_GxNxP in starts.items():
                rms_P = np.sqrt(squares_GxNxP[group, seed])
                sizes |= {(quantity, path): rms[None] for path, rms in zip(info, rms_P, strict=True)}
            sizes = _uncarried(sizes, info, self.rule)
            trains = zip(info, self.groups[groups[group]], strict=True)
            untrained = {path for path, trained in trains if not trained}
            for (quantity, name), values in _collapsed(sizes, untrained, self.network.collapse).items():
                length = self.lengths[group]
                for step in _steps_recorded(quantity, group, length):
                    # The update of a step is computed from the gradient before it.
                    value = float(values[step - (quantity in _OF_UPDATES)])
                    records.append(Record(*self.size, seed, groups[group], step, quantity, name, value))
        return records


def _uncarried(
    sizes: Mapping[_Key, np.ndarray], info: Mapping[str, ParamInfo], rule: Parametrization
) -> dict[_Key, np.ndarray]:
    """The sizes of activations in the same network with its carried factors in the code (see `ParamInfo`)."""
    factors = _carried_activations(sizes, info, rule)
    result = {}
    for (quantity, name), values in sizes.items():
        factor = 1.0
        if quantity in ("activation", "change"):
            factor = factors.get(name, 1.0)
        if not math.isnan(factor):
            result[quantity, name] = values / factor
    return result


def _carried_activations(
    sizes: Mapping[_Key, np.ndarray], info: Mapping[str, ParamInfo], rule: Parametrization
) -> dict[str, float]:
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
            factor = leaf.factor(rule)
            c = float(factor) if np.ndim(factor) == 0 and leaf.role is not Role.INPUT else math.nan
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


def _trained(
    measurement: Measurement, seeds: np.ndarray, look: _Program, move: _Program
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Mean squares ``[groups, N, steps + 1, keys]`` of N seeds, and those of the start ``[groups, N, P]``.

    Sizes are taken outside of the programs, by one small program for each shape. Activations are recorded in the
    forward pass of the gradient.
    """
    network, info = measurement.network.traced.network, measurement.network.info
    c_P = np.array(
        [leaf.factor(measurement.rule) for leaf in info.values()]
    )  # carried: sizes are those with them in the code
    drawn_N = drawn_each(network.init, [(jax.random.key(seed),) for seed in seeds])
    own = jax.tree.map(lambda *of_seeds: np.stack(of_seeds), *drawn_N)
    leaves, tree = jax.tree.flatten(own)
    filled = lambda value: jax.tree.map(lambda x: np.full(x.shape, value, x.dtype), own)
    every = jax.tree.map(lambda _: np.True_, own)
    outputs = measurement.network.traced.shapes[OUTPUT].shape[-1:]
    readouts = [_random_readout(leaf, measurement.rule, outputs) for leaf in info.values()]

    def begun(params_P: Sequence[jax.Array]) -> tuple[ArrayTree, ArrayTree, list[jax.Array], np.ndarray]:
        """Parameters, the optimizer's state, updates of decay alone, and their mean squares over the parameters'."""
        params = jax.tree.unflatten(tree, params_P)
        state = drawn(jax.vmap(network.optimizer.init), params)
        decays_P = jax.tree.leaves(move(filled(0), state, params, every)[-1])
        finite_P = np.all(np.isfinite(_squares(decays_P)), axis=0)
        decays_P = [u if finite else jnp.nan_to_num(u) for u, finite in zip(decays_P, finite_P, strict=True)]
        return params, state, decays_P, _squares(decays_P) / np.maximum(_squares(params_P), 1e-30)

    random_P = [x if random is None else _rescaled(x, random) for x, random in zip(leaves, readouts, strict=True)]
    params, state, *_ = from_random = begun(random_P)
    # A readout that the optimizer freezes does not start at zero.
    first_P = jax.tree.leaves(move(filled(1), state, params, every)[-1])
    moved_NxP, weights_NxP = _squares(first_P), _squares(leaves)
    zeroed_P = [moves and random is not None for moves, random in zip(np.any(moved_NxP, axis=0), readouts, strict=True)]
    from_zero = begun([np.zeros_like(x) if zeroed else x for x, zeroed in zip(random_P, zeroed_P, strict=True)])
    of_groups, rates = list[np.ndarray](), list[np.ndarray]()
    for group, (trains, length) in enumerate(zip(measurement.groups.values(), measurement.lengths, strict=True)):
        params, state, decays_P, rates_NxP = from_random if group else from_zero
        start = dict[str, jax.Array]()
        rates.append(rates_NxP)
        steps = np.zeros((len(seeds), max(measurement.lengths) + 1, len(measurement.keys)), np.float32)
        for step in range(length + 1):  # the last one records the activations after the last step
            grads, now = look(params)
            start = start or now
            params, state, updates = move(grads, state, params, jax.tree.unflatten(tree, map(np.bool_, trains)))
            updates_P, grads_P = jax.tree.leaves(updates), jax.tree.leaves(grads)
            updates_NxP, gradients_NxP = _squares(updates_P), _squares(grads_P)
            differences_NxP = _squares(updates_P, decays_P) if rates_NxP.any() else updates_NxP
            aligned = _part_along(start[_SLOPE], now[OUTPUT], start[OUTPUT])
            names = list(measurement.network.traced.shapes)
            now_A, start_A = ([of[name] for name in names] for of in (now, start))
            activations, changes = _squares(now_A), _squares(now_A, start_A)
            of_params = [updates_NxP / c_P**2, differences_NxP / c_P**2, gradients_NxP * c_P**2]
            steps[:, step] = np.concatenate([activations, changes, np.asarray(aligned)[:, None], *of_params], axis=1)
        of_groups.append(steps)
    weights = np.stack([weights_NxP / c_P**2] * len(of_groups))
    return np.stack(of_groups), {"weight": weights, "decay": np.stack(rates)}


_Program = Callable[..., Any]
_SLOPE = "slope of the loss"  # the gradient of the loss by the outputs, at the start


def _squares(xs: Sequence[jax.Array], *less: Sequence[jax.Array]) -> np.ndarray:
    """Mean squares ``[N, len(xs)]`` of x, or of x - y."""
    return np.stack(jax.device_get([_squares_program()(*x_and_y) for x_and_y in zip(xs, *less, strict=True)]), axis=-1)


@functools.cache
def _squares_program() -> _Program:
    def square(x: jax.Array, *less: jax.Array) -> jax.Array:
        return _mean_square(x.astype(jnp.float32) - less[0].astype(jnp.float32) if less else x)

    return jax.jit(jax.vmap(square), compiler_options=drawing_options(jax.default_backend()))


@jax.jit
@jax.vmap
def _part_along(direction: jax.Array, now: jax.Array, start: jax.Array) -> jax.Array:
    """The mean square of the part of a change along a direction."""
    direction, change = direction.astype(jnp.float32), now.astype(jnp.float32) - start.astype(jnp.float32)
    square = jnp.maximum(jnp.vdot(direction, direction), 1e-30)
    return _mean_square(direction * (jnp.vdot(change, direction) / square))


def _random_readout(leaf: ParamInfo, rule: Parametrization, outputs: tuple[int, ...]) -> np.ndarray | None:
    """Values of the rule's standard deviation for a readout's weights; ``None`` for other parameters.

    Weights are ``[..., out]``, or ``[out, ...]``, as in Equinox, if only the first dimension is the network's outputs.
    """
    if leaf.role is not Role.OUTPUT or leaf.in_branch:
        return None
    shape = leaf.shape
    into = shape[1:] if shape[:1] == outputs != shape[-1:] else shape[:-1]
    std = rule.readout_fan_in(math.prod(into), leaf.width_in) ** -0.5 * leaf.factor(rule)
    values = np.random.default_rng(0).standard_normal(leaf.shape, np.float32)
    return values * np.float32(std / np.sqrt(np.mean(values**2)))


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None))
def _rescaled(leaf: jax.Array, random: jax.Array) -> jax.Array:
    """``leaf`` with the size of ``random``; ``random`` if ``leaf`` is zero."""
    square = _mean_square(leaf)
    scale = jnp.sqrt(_mean_square(random) / jnp.where(square > 0, square, 1.0))
    return jnp.where(square > 0, leaf * scale.astype(leaf.dtype), random.astype(leaf.dtype))


def _mean_square(x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(x.astype(jnp.float32)))
