"""Samples of the neurons of a residual network of infinite width in training: the process of `nonlinear_training`.

Its equations are in `reproduction.theory.nonlinear`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from depthmup_flax.util.types import Dtype, Scalar
from reproduction.theory.branch_form import Form, form, pulled
from reproduction.theory.gaussian_averages import Elementwise, get_activation
from reproduction.theory.trajectory import Loss, Training, slope_of
from reproduction.theory.wide_weights import (
    Seen,
    correlated,
    initial_product,
    layer_kernels,
    unseen,
    white_noise,
)


class Plan(NamedTuple):
    """The shape of a network and of its samples."""

    activation: str
    pre_nonlin: bool
    alpha: float
    block_depth: int  # K
    zero_init_branch: bool
    depth: int
    steps: int
    examples: int
    positions: int  # A; 1 without convolution
    shifts: int  # weights of a convolution, one for each of B shifts
    samples: int
    loss: Loss

    @property
    def columns(self) -> int:
        """Q = P A, the passes of a step."""
        return self.examples * self.positions

    @property
    def passes(self) -> int:
        """M = T Q."""
        return self.steps * self.columns

    @property
    def variables(self) -> int:
        """Gaussian variables: u and r of all weights, the stem's outputs, the readout's weights."""
        weights = self.depth * self.block_depth * self.shifts
        return 2 * weights * self.passes + self.columns + self.positions


class Numbers(NamedTuple):
    """The numbers of a network and of its training."""

    start_QxQ: jax.Array  # x . x' / D
    targets_P: jax.Array
    shares_TxP: jax.Array
    rate: Scalar  # eta_0 gamma0
    gamma0: Scalar
    a: Scalar  # branch multiplier, without L^-alpha
    shifts_BxAxA: jax.Array
    remaining_T: dict[str, jax.Array]  # c_t of each group of layers
    learned_TxT: dict[str, jax.Array]  # k_ts


def _shifted(x: jax.Array, shift_AxA: jax.Array) -> jax.Array:
    """(..., Q) columns of a step, moved from position to position."""
    return (x.reshape(*x.shape[:-1], -1, len(shift_AxA)) @ shift_AxA).reshape(x.shape)


def _product(
    column: jax.Array,  # t Q, the number of earlier passes
    remaining: Scalar,  # c_t
    learned_M: jax.Array,  # -eta_0 gamma0 a L^(alpha - 1) k_ts chi_s
    shifts_BxAxA: jax.Array,
    now_SxQ: jax.Array,
    seen: tuple[Seen, Seen],  # in this direction, and in the other
    noises: tuple[jax.Array, jax.Array],  # (B, S, M) of the product's side, and of this one
) -> tuple[jax.Array, Seen]:
    """``W_t x`` or ``W_t^T y`` of a layer of blocks, and the inputs seen so far.

    Each shift of a convolution has weights of its own: the products of all of them are moved and summed.
    """
    (mine, other), random, moved = seen, jnp.zeros_like(now_SxQ), jnp.zeros_like(now_SxQ)
    gram_MxQ = mine.values_SxM.T @ now_SxQ / len(now_SxQ)
    for shift_AxA, *own in zip(shifts_BxAxA, *noises, strict=True):
        product, now_seen = initial_product(column, now_SxQ, seen, tuple(own))
        random += _shifted(product, shift_AxA)
        # Updates have y of a position with x of the position from which the shift moves it there.
        moved += other.values_SxM @ (learned_M[:, None] * _shifted(_shifted(gram_MxQ, shift_AxA).T, shift_AxA).T)
    return remaining * random + moved, now_seen


class _Noise(NamedTuple):
    """White noise of a population: of the stem, the readout, and the products W x and W^T y of all weights."""

    stem_SxQ: jax.Array
    readout_SxA: jax.Array
    forward: jax.Array  # (L, K, B, S, M)
    backward: jax.Array

    @classmethod
    def draw(cls, plan: Plan, key: jax.Array, dtype: Dtype) -> _Noise:
        noise, Q, A = white_noise(key, plan.samples, plan.variables, dtype), plan.columns, plan.positions
        shape = plan.samples, 2, plan.depth, plan.block_depth, plan.shifts, plan.passes
        blocks = jnp.moveaxis(noise[:, Q + A :].reshape(shape), 0, 4)
        return cls(noise[:, :Q], noise[:, Q : Q + A], *blocks)


class _Readout(NamedTuple):
    """``sum_a w_a x_a / sqrt(A)``, with its own weights at each position."""

    plan: Plan
    remaining: Scalar
    learned_M: jax.Array
    start_SxA: jax.Array
    seen_SxM: jax.Array  # its inputs in all passes, those of this step included

    def outputs(self, now_SxQ: jax.Array) -> jax.Array:
        """(P,) gamma0 times the outputs. They start at 0; the samples' estimate of it would be noise."""
        S, changed = len(now_SxQ), self._by_example(now_SxQ - self.seen_SxM[:, : self.plan.columns])
        initial_P = jnp.einsum("spa,sa->p", changed, self.start_SxA) / S
        own = jnp.einsum("spa,sa->p", self._by_example(now_SxQ), self._learned()) / S
        return (self.remaining * initial_P + own) * self.plan.positions**-0.5

    def gradient(self) -> jax.Array:
        """(S, Q) N gamma0 times the outputs' derivative by their inputs."""
        weights_SxA = (self.remaining * self.start_SxA + self._learned()) * self.plan.positions**-0.5
        return jnp.tile(weights_SxA, (1, self.plan.examples))

    def _learned(self) -> jax.Array:
        moved = self._by_example(self.seen_SxM * self.learned_M).sum(1)
        return moved * self.plan.positions**-0.5

    def _by_example(self, x: jax.Array) -> jax.Array:
        return x.reshape(len(x), -1, self.plan.positions)


class _Branches(NamedTuple):
    """One step's passes up and down a layer of the stream."""

    plan: Plan
    numbers: Numbers
    column: jax.Array  # t Q, the number of earlier passes
    remaining: Scalar  # c_t
    learned_M: jax.Array  # -eta_0 gamma0 k_ts chi_s

    def up(self, h_SxQ: jax.Array, layer: Any) -> tuple[jax.Array, Any]:
        """The stream above; what `down` needs, and the inputs that the branch's weights have seen."""
        x, states, seen = self._form.before(h_SxQ), [h_SxQ], list[Seen]()
        for k, after in enumerate(self._after):
            z, seen_x = self._product(k, x, layer, self.numbers.shifts_BxAxA)
            x, states, seen = after(z), [*states, z], [*seen, seen_x]
        return h_SxQ + self.size * x, (jnp.stack(states), _stacked(seen))

    def down(self, g_SxQ: jax.Array, layer: Any) -> tuple[jax.Array, Seen]:
        """The gradient below, and the gradients that the branch's weights have seen."""
        ((h_SxQ, *zs), *rest), y, seen = layer, g_SxQ, list[Seen]()
        for k, after in reversed(list(enumerate(self._after))):
            y, seen_y = self._product(k, pulled(after, zs[k], y), rest, self.numbers.shifts_BxAxA.mT)
            seen = [seen_y, *seen]
        return g_SxQ + self.size * pulled(self._form.before, h_SxQ, y), _stacked(seen)

    @property
    def size(self) -> Scalar:
        """``a L^-alpha``."""
        return self.numbers.a * self.plan.depth**-self.plan.alpha

    @property
    def _form(self) -> Form:
        return form(self.plan.activation, self.plan.pre_nonlin)

    @property
    def _after(self) -> list[Elementwise]:
        """What follows each of a branch's weights."""
        return [get_activation(self.plan.activation).function] * (self.plan.block_depth - 1) + [self._form.after]

    def _product(self, k: int, now_SxQ: jax.Array, layer: Any, shifts: jax.Array) -> tuple[jax.Array, Seen]:
        seen, noises = jax.tree.map(lambda x: x[k], layer)
        strength = self.numbers.a * self.plan.depth ** (self.plan.alpha - 1)
        is_zero = self.plan.zero_init_branch and k == self.plan.block_depth - 1
        remaining = 0.0 if is_zero else self.remaining
        return _product(self.column, remaining, strength * self.learned_M, shifts, now_SxQ, seen, noises)


def population(plan: Plan, numbers: Numbers, key: jax.Array) -> Training:
    """Training of a network of infinite width, whose law is that of these samples of neurons."""
    S, L, K, Q, M = plan.samples, plan.depth, plan.block_depth, plan.columns, plan.passes
    before, dtype = form(plan.activation, plan.pre_nonlin).before, numbers.start_QxQ.dtype
    noise, slope = _Noise.draw(plan, key, dtype), slope_of(plan.loss)
    start_SxQ = correlated(noise.stem_SxQ, numbers.start_QxQ)

    def step(carry: Any, t: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        xs, ys, top_x_SxM, bottom_g_SxM, chi_M = carry
        learned = {name: -numbers.rate * jnp.repeat(k[t], Q) * chi_M for name, k in numbers.learned_TxT.items()}
        remaining = {name: c[t] for name, c in numbers.remaining_T.items()}
        put = lambda all_SxM, now_SxQ: jax.lax.dynamic_update_slice(all_SxM, now_SxQ, (0, t * Q))
        branches = _Branches(plan, numbers, t * Q, remaining["blocks"], learned["blocks"])

        seen_MxQ = learned["stem"][:, None] * jnp.tile(numbers.start_QxQ, (plan.steps, 1))
        h_SxQ = remaining["stem"] * start_SxQ + bottom_g_SxM @ seen_MxQ
        h_SxQ, (states, xs) = jax.lax.scan(branches.up, h_SxQ, ((xs, ys), (noise.forward, noise.backward)))
        top_SxQ = before(h_SxQ)
        top_x_SxM = put(top_x_SxM, top_SxQ)
        readout = _Readout(plan, remaining["readout"], learned["readout"], noise.readout_SxA, top_x_SxM)
        outputs_P = readout.outputs(top_SxQ) / numbers.gamma0
        g_SxQ = pulled(before, h_SxQ, readout.gradient())
        layers = (states, (ys, xs), (noise.backward, noise.forward))
        g_SxQ, ys = jax.lax.scan(branches.down, g_SxQ, layers, reverse=True)
        shares_P = numbers.shares_TxP[t]
        loss = shares_P @ plan.loss(outputs_P, numbers.targets_P)
        now_chi_Q = jnp.repeat(slope(outputs_P, numbers.targets_P) * shares_P, plan.positions)
        chi_M = jax.lax.dynamic_update_slice(chi_M, now_chi_Q, (t * Q,))
        return (xs, ys, top_x_SxM, put(bottom_g_SxM, g_SxQ), chi_M), (outputs_P, loss)

    nothing, none = unseen((L, K, S, M), dtype), jnp.zeros((S, M), dtype)
    start = (nothing, nothing, none, none, jnp.zeros(M, dtype))
    (xs, ys, top_x, bottom_g, _), (outputs, losses) = jax.lax.scan(step, start, jnp.arange(plan.steps))
    of_weights = lambda seen, k: jax.tree.map(lambda x: x[:, k], seen)
    return Training(outputs, losses, *layer_kernels(of_weights(xs, 0), top_x, bottom_g, of_weights(ys, -1)))


def _stacked(seen: Sequence[Seen]) -> Seen:
    """(K, ...) of the weights of a branch."""
    return jax.tree.map(lambda *x: jnp.stack(x), *seen)
