"""Trains a network for a few steps in one compiled program, and records the sizes that the rule keeps equal."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup_flax.check.layers import SizedNetwork
from depthmup_flax.check.networks import Activations
from depthmup_flax.check.records import (
    ACTIVATION,
    CHANGE,
    DECAY,
    EFFECT,
    GRADIENT,
    LEAST_UPDATE,
    MOST_UPDATE,
    OUTPUT,
    START,
    UPDATE,
    Record,
)
from depthmup_flax.devices.host import drawing_options
from depthmup_flax.rule.measures import gradient_size, mean_square, moved, parameter_size, update_size
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role
from depthmup_flax.util.types import ArrayTree

Loss = Callable[[jax.Array], jax.Array]
# Quantity -> name -> mean squares, one per step.
Squares = Mapping[str, Mapping[str, jax.Array]]
_ROUNDING = 1e-5  # of an activation: a smaller change is none


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The measurement of one network: a program from a seed to the sizes of every step.

    All parameters train together, from a readout of the rule's scale: through zeros nothing else gets a gradient, and
    through a readout that shrinks with width gradients shrink, too.
    """

    network: SizedNetwork
    loss: Loss
    rule: Parametrization
    steps: int
    seeds: int
    of_layers: bool  # whether activations are measured
    effects: frozenset[str] = frozenset()  # paths of the parameters whose effect is measured

    def records(self) -> Iterator[Record]:
        """The records of all seeds, one seed after another."""
        options = drawing_options(jax.default_backend())
        program = jax.jit(self.squares, compiler_options=options).lower(np.uint32(0)).compile()
        for seed in range(self.seeds):
            squares = jax.device_get(program(np.uint32(seed)))
            for (quantity, name), values in self._named(squares).items():
                first_step = 0 if quantity in (START, ACTIVATION) else 1
                for step, value in enumerate(values, start=first_step):
                    yield Record(*self.network.size, seed, step, quantity, name, float(value))

    def squares(self, seed: jax.Array) -> Squares:
        """The mean squares of one seed, a pure function."""
        network = self.network.traced.network
        given = network.init(jax.random.key(seed))
        params = self._with_random_readouts(given)
        state = network.optimizer.init(params)
        no_gradient = jax.tree.map(jnp.zeros_like, params)
        decays, _ = network.optimizer.update(no_gradient, state, params)
        decays = jax.tree.map(jnp.nan_to_num, decays)  # 0/0 of directions that are normalized

        def step(carry: tuple[ArrayTree, ArrayTree, Activations], index: jax.Array) -> tuple[Any, Squares]:
            params, state, start = carry
            grads, now = jax.grad(self._forward, has_aux=True)(params)
            start = jax.tree.map(functools.partial(jnp.where, index == 0), now, start)
            updates, state = network.optimizer.update(grads, state, params)
            row = self._of_parameters(params, grads, updates, decays) | self._of_activations(now, start)
            return (optax.apply_updates(params, updates), state, start), row

        start = jax.tree.map(jnp.zeros_like, self.network.traced.shapes) if self.of_layers else {}
        # The activations after the last step are those of one more.
        count = self.steps + self.of_layers
        _, rows = jax.lax.scan(step, (params, state, start), jnp.arange(count))
        rows = {
            quantity: {name: x[1:] if quantity == CHANGE else x[: self.steps] for name, x in of_names.items()}
            for quantity, of_names in rows.items()
        }
        if self.of_layers:
            rows[ACTIVATION] = {name: x[:1] for name, x in rows[ACTIVATION].items()}
        return rows | self._at_start(given, params, decays)

    def _forward(self, params: ArrayTree) -> tuple[jax.Array, Activations]:
        outputs, activations = self.network.traced.network.apply(params)
        return self.loss(outputs), {**activations, OUTPUT: outputs} if self.of_layers else {}

    def _with_random_readouts(self, params: ArrayTree) -> ArrayTree:
        """The parameters, with readouts of the rule's standard deviation."""
        leaves = jax.tree.leaves(params)
        outputs = self.network.traced.shapes[OUTPUT].shape[-1:]
        for i, leaf in enumerate(self.network.info.values()):
            if leaf.role is Role.OUTPUT and not leaf.in_branch:
                leaves[i] = _random_readout(leaf, self.rule, outputs, leaves[i])
        return jax.tree.unflatten(jax.tree.structure(params), leaves)

    def _of_parameters(
        self, params: ArrayTree, grads: ArrayTree, updates: ArrayTree, decays: ArrayTree
    ) -> dict[str, dict[str, jax.Array]]:
        """The sizes of one step, over the rule's."""
        found: dict[str, dict[str, jax.Array]] = {GRADIENT: {}, UPDATE: {}, EFFECT: {}}
        trees = map(jax.tree.leaves, (params, grads, updates, decays))
        for (path, leaf), x, gradient, update, decay in zip(self.network.info.items(), *trees, strict=True):
            of_gradient, of_update = gradient_size(self.rule, leaf), update_size(self.rule, leaf)
            whole = mean_square(moved(x, update), of_update)
            own = mean_square(moved(x, update) - decay, of_update)
            # Decay itself changes a little from step to step.
            found[UPDATE][path] = jnp.where(own < 1e-6 * whole, 0.0, own)
            found[GRADIENT][path] = mean_square(gradient, of_gradient)
            if path in self.effects:
                product = gradient.astype(jnp.float32) * update / (of_gradient * of_update)
                found[EFFECT][path] = jnp.square(jnp.mean(product))
        return found

    def _of_activations(self, now: Activations, start: Activations) -> dict[str, dict[str, jax.Array]]:
        if not self.of_layers:
            return {}
        sizes = {name: mean_square(x, 1.0) for name, x in now.items()}
        changes = {name: mean_square(x - start[name], 1.0) for name, x in now.items()}
        changes = {name: jnp.where(x < _ROUNDING**2 * sizes[name], 0.0, x) for name, x in changes.items()}
        return {ACTIVATION: sizes, CHANGE: changes}

    def _at_start(self, given: ArrayTree, params: ArrayTree, decays: ArrayTree) -> dict[str, dict[str, jax.Array]]:
        """The size of initial values, and the share that decay removes."""
        found: dict[str, dict[str, jax.Array]] = {START: {}, DECAY: {}}
        trees = map(jax.tree.leaves, (given, params, decays))
        for (path, leaf), initial, x, decay in zip(self.network.info.items(), *trees, strict=True):
            size = parameter_size(self.rule, leaf)
            found[START][path] = mean_square(leaf.uncarried(initial, self.rule), size)[None]
            share = mean_square(decay, 1.0) / jnp.maximum(mean_square(x, 1.0), 1e-30)
            found[DECAY][path] = share[None]
        return found

    def _named(self, squares: Mapping[str, Mapping[str, np.ndarray]]) -> dict[tuple[str, str], np.ndarray]:
        """The root mean squares of all layers of one name at each step, and the extremes of their updates."""
        together: dict[tuple[str, str], list[np.ndarray]] = {}
        for quantity, of_names in squares.items():
            for name, values in of_names.items():
                together.setdefault((quantity, self.network.collapse(name)), []).append(values)
        found = {}
        for (quantity, name), of_layers in together.items():
            squares_LxS = np.stack(of_layers).astype(np.float64)
            found[quantity, name] = np.sqrt(squares_LxS.mean(0))
            if quantity == UPDATE and len(of_layers) > 1:  # the mean would hide one wrong layer among many
                found[LEAST_UPDATE, name] = np.sqrt(squares_LxS.min(0))
                found[MOST_UPDATE, name] = np.sqrt(squares_LxS.max(0))
        return found


def _random_readout(leaf: ParamInfo, rule: Parametrization, outputs: tuple[int, ...], given: jax.Array) -> jax.Array:
    """``given`` with the rule's standard deviation; random values where it is zero.

    Weights are ``[..., out]``, or ``[out, ...]``, as in Equinox, if only the first dimension is the network's outputs.
    """
    into = leaf.shape[1:] if leaf.shape[:1] == outputs != leaf.shape[-1:] else leaf.shape[:-1]
    std = rule.readout_fan_in(math.prod(into), leaf.width_in) ** -0.5 * leaf.factor(rule)
    square = mean_square(given, 1.0)
    random = jax.random.normal(jax.random.key(0), leaf.shape)
    values = jnp.where(square > 0, given / jnp.sqrt(jnp.where(square > 0, square, 1.0)), random)
    return (std * values).astype(given.dtype)
