"""Attention of infinite width and infinitely many heads in training: dynamical mean field theory by Monte Carlo.

The network is a stack of `depthmup_flax.nn.attention.SelfAttention` in residual branches, whose heads have d features,

    h^0 = U x / sqrt(D),  h <- h + a / sqrt(L) W^o mixed,  f = (mean over tokens of w . h) / (gamma0 N)
    mixed = softmax(q^T k / sqrt(d)) v in each head,  q, k, v = W^q h, W^k h, W^v h

without norms, with frozen U and w from N(0, 1), W^q that starts at zero and other weights from N(0, 1/N). As N and the
number N / d of heads grow (Bordelon et al., arXiv:2405.15712, infinite heads) neurons of the stream become draws from
one law, as in `reproduction.theory.nonlinear`, and so do heads: d features of q, k, v and their gradients at
all passes. Weights connect the two, and `reproduction.theory.wide_weights` has their products. Derived as
`nonlinear`, not from that paper's equations; the test compares with the package's own layers.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.precision import products_in
from depthmup_flax.util.types import Scalar
from reproduction.theory import argument_checks
from reproduction.theory.input_kernel import checked_kernel, gram
from reproduction.theory.trajectory import Estimate, Loss, Training, over_populations, slope_of, square_loss
from reproduction.theory.wide_weights import (
    checked_samples,
    correlated,
    layer_kernels,
    trained_product,
    unseen,
    white_noise,
)

_LEAST_SAMPLES = 2048
_INTO, _OUT = ("query", "key", "value"), "out"
_RANDOM = ("key", "value", _OUT)  # do not start at zero


@products_in("float32")
def attention_training(
    inputs: jax.Array,
    targets: jax.Array,
    *,
    head_dim: int,
    steps: int,
    depth: int,
    causal: bool = False,
    learning_rate: float = 1.0,
    gamma0: float = 1.0,
    branch_multiplier: float = 1.0,
    loss: Loss = square_loss,
    samples: int | None = None,
    populations: int = 8,
    key: jax.Array | None = None,
) -> Estimate:
    """SGD on attention of infinite width, infinitely many heads and depth L: the theory of this module.

    Args:
      inputs: (P, T, D) all examples, of T tokens; a step's loss is the examples' mean.
      targets: (P,) second argument of ``loss``.
      head_dim: d, features of a head.
      causal: a token reads itself and earlier ones.
      samples: S, a multiple of ``2 head_dim``, a stream neuron and a head's feature each; default the smallest power of
        two that is at least 2048 and three times the number of Gaussian variables, times d if d is no power of two.
      steps, depth, learning_rate, gamma0, branch_multiplier, loss, populations, key: as of `nonlinear_training`.

    Returns:
      `Estimate` of a `Training` with B = P and, in its kernels of the stream, P T passes a step: of tokens.

    Raises:
      InputError: bad shapes or numbers, too few samples, or training that diverges.
    """
    inputs, targets = jnp.asarray(inputs), jnp.asarray(targets)
    if inputs.ndim != 3:
        raise InputError(f"inputs has shape {inputs.shape}: give (examples, tokens, size).")
    argument_checks.require_whole("head_dim", head_dim)
    argument_checks.require_training(depth, gamma0, learning_rate, branch_multiplier, targets, "transformer_kernels")
    argument_checks.require_populations(steps, populations)
    P, T, _ = inputs.shape
    start = checked_kernel(gram(inputs.reshape(P * T, -1)))
    targets = targets.astype(start.dtype)
    argument_checks.require_targets(loss, targets, P, "example")
    variables = 2 * len(_RANDOM) * depth * steps * P * T + P * T + 1
    number = checked_samples(samples, variables, _LEAST_SAMPLES)
    if samples is None and head_dim & (head_dim - 1):
        number *= head_dim
    if number % (2 * head_dim):
        raise InputError(f"samples is {number}: use a multiple of {2 * head_dim}, two heads of {head_dim} features.")
    plan = _Plan(head_dim, steps, depth, T, causal, number, loss)
    rates = (learning_rate, gamma0, branch_multiplier)
    estimate = over_populations(_population, plan, populations, key, start, targets, rates)
    argument_checks.require_convergence(estimate.mean.outputs, targets, learning_rate)
    return estimate


class _Plan(NamedTuple):
    head_dim: int
    steps: int
    depth: int
    tokens: int
    causal: bool
    samples: int
    loss: Loss

    def attend(self, q_SxN: jax.Array, k_SxN: jax.Array, v_SxN: jax.Array) -> jax.Array:
        """(S, P T) the mixed values of S / d heads."""
        T = self.tokens
        q, k, v = (x.reshape(-1, self.head_dim, x.shape[1] // T, T) for x in (q_SxN, k_SxN, v_SxN))
        logits = jnp.einsum("sdpt,sdpu->sptu", q, k) * self.head_dim**-0.5
        seen = jnp.tril(jnp.ones((T, T), bool)) if self.causal else jnp.ones((T, T), bool)
        weights = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf))
        return jnp.einsum("sptu,sdpu->sdpt", weights, v).reshape(q_SxN.shape)


def _population(
    plan: _Plan, start_NxN: jax.Array, targets_P: jax.Array, rates: tuple[Scalar, Scalar, Scalar], key: jax.Array
) -> Training:
    """N = P T tokens in a step, M in all."""
    S, L, N, (rate, gamma0, a) = plan.samples, plan.depth, len(start_NxN), rates
    M, dtype, slope = plan.steps * N, start_NxN.dtype, slope_of(plan.loss)
    noise = white_noise(key, S, 2 * len(_RANDOM) * L * M + N + 1, dtype)
    pairs = noise[:, N + 1 :].reshape(S, len(_RANDOM), 2, L, M).transpose(1, 2, 3, 0, 4)
    noises = {name: (forward, backward) for name, (forward, backward) in zip(_RANDOM, pairs, strict=True)}
    noises["query"] = (jnp.zeros((L, S, M), dtype),) * 2
    start_SxN, readout_S, size = correlated(noise[:, :N], start_NxN), noise[:, N], a * L**-0.5

    def step(carry: Any, t: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        xs, ys, top_SxM, bottom_g_SxM, chi_M = carry
        product = functools.partial(trained_product, t * N, size, 1.0, -rate * gamma0 * chi_M)
        put = lambda all_SxM, now_SxN: jax.lax.dynamic_update_slice(all_SxM, now_SxN, (0, t * N))

        def up(h_SxN: jax.Array, layer: Any) -> tuple[jax.Array, Any]:
            x, y, noise = layer
            forward = lambda name, now: product(now, (x[name], y[name]), noise[name])
            found = {name: forward(name, h_SxN) for name in _INTO}
            qkv = tuple(found[name][0] for name in _INTO)
            added, found_out = forward(_OUT, plan.attend(*qkv))
            return h_SxN + size * added, (qkv, {_OUT: found_out, **{name: one for name, (_, one) in found.items()}})

        def down(g_SxN: jax.Array, layer: Any) -> tuple[jax.Array, Any]:
            qkv, x, y, noise = layer
            backward = lambda name, now: product(now, (y[name], x[name]), noise[name][::-1])
            r_SxN, y_out = backward(_OUT, g_SxN)
            by_qkv = jax.vjp(plan.attend, *qkv)[1](r_SxN)
            found = {name: backward(name, by) for name, by in zip(_INTO, by_qkv, strict=True)}
            added = sum(one for one, _ in found.values())
            return g_SxN + size * added, {_OUT: y_out, **{name: one for name, (_, one) in found.items()}}

        h_SxN, (qkv, xs) = jax.lax.scan(up, start_SxN, (xs, ys, noises))
        top_SxM = put(top_SxM, h_SxN)
        pooled = lambda x: x.reshape(-1, len(targets_P), plan.tokens).mean(2)
        # f starts at 0; the samples' estimate of it would be noise, enlarged by 1 / gamma0.
        outputs_P = readout_S @ pooled(h_SxN - top_SxM[:, :N]) / (S * gamma0)
        g_SxN = jnp.broadcast_to(readout_S[:, None] / plan.tokens, h_SxN.shape)
        g_SxN, ys = jax.lax.scan(down, g_SxN, (qkv, xs, ys, noises), reverse=True)
        chi_N = jnp.repeat(slope(outputs_P, targets_P) / len(targets_P), plan.tokens)
        chi_M = jax.lax.dynamic_update_slice(chi_M, chi_N, (t * N,))
        after_step = (xs, ys, top_SxM, put(bottom_g_SxM, g_SxN), chi_M)
        return after_step, (outputs_P, plan.loss(outputs_P, targets_P).mean())

    nothing, none = {name: unseen((L, S, M), dtype) for name in (*_INTO, _OUT)}, jnp.zeros((S, M), dtype)
    start = (nothing, nothing, none, none, jnp.zeros(M, dtype))
    (xs, ys, top, bottom_g, _), (outputs, losses) = jax.lax.scan(step, start, jnp.arange(plan.steps))
    return Training(outputs, losses, *layer_kernels(xs["value"], top, bottom_g, ys[_OUT]))
