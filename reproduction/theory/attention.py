"""Transformers of infinite width before training: the kernel of the residual stream over depth.

The network is that of `depthmup_flax.models.GPT` and `ViT`: L layers of attention and of a feed-forward, each behind a
norm and times ``a / sqrt(L)``. Between tokens t of examples p, with H = <h h'> and C = H / sqrt(diag diag), a layer is

    H <- H + a^2 / L <<sigma(A) C sigma(A)^T>>,   then   H <- H + a^2 / L <phi(u) phi(u')>,  u Gaussian of covariance C

as values and outputs are Gaussian (Hron et al., arXiv:2006.10540). sigma is the softmax over the keys of a query, and
<< >> the average over heads: that of infinitely many, whose attention is a distribution (Bordelon et al.,
arXiv:2405.15712). Queries and keys of a head have d Gaussian features of covariance C, and ``A_ts = scale q_t . k_s``:

* ``scale = 1 / sqrt(d)``: as d grows, logits become Gaussian of covariance ``C_tt' C_ss'``, and heads stay different.
* ``scale ~ 1 / d``, which training needs as d grows (arXiv:2203.03466 Def. 4.1): logits vanish as d^-1/2, and all heads
  become one, which takes the mean over the keys. Queries that start at zero have this mean at every d.

The formulas are derived here, as only the abstract of arXiv:2405.15712 was at hand; simulations in the tests decide.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from depthmup_flax.util.errors import InputError, did_you_mean
from depthmup_flax.util.precision import products_in
from reproduction.theory.argument_checks import require_number, require_whole
from reproduction.theory.gaussian_averages import get_activation
from reproduction.theory.input_kernel import checked_kernel
from reproduction.theory.wide_weights import correlated

QUERIES = ("zero", "random", "normalized")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StreamKernels:
    """Kernels over layer time between P examples of T tokens, with the standard error over populations of heads."""

    layer_time: jax.Array  # (L + 1,) from 0 to 1
    H: jax.Array  # (L + 1, P, T, P, T) covariance of the stream
    error: jax.Array  # of H, of the same shape; 0 where all heads are one


@products_in("float32")
def transformer_kernels(
    start: jax.Array,
    *,
    tokens: int,
    depth: int | None = None,
    causal: bool = False,
    queries: str = "zero",
    head_dim: int | None = None,
    scale: float | None = None,
    activation: str | None = "gelu",
    norm: bool = True,
    branch_multiplier: float = 1.0,
    steps: int = 32,
    heads: int = 512,
    populations: int = 8,
    key: jax.Array | None = None,
) -> StreamKernels:
    """Kernels of a transformer of infinite width and infinitely many heads before training (this module's docstring).

    Args:
      start: (P T, P T) H of the embedded tokens, ordered by example, then by token.
      tokens: T.
      depth: L; ``None`` is infinity, ``2 H(2 steps) - H(steps)``, with an error of order ``steps^-2``.
      causal: a token reads itself and earlier ones.
      queries: ``zero`` or ``normalized`` (divided by their root mean square, as are keys) are the model's without and
        with ``qk_norm``; ``random`` are Gaussian.
      head_dim: d; ``None`` is infinity, with logits of order one.
      scale: of logits, such as the rule's ``attention_scale(d, d_base)``; default ``1 / sqrt(d)``.
      activation: of the feed-forward; ``None``: no feed-forward.
      norm: C is normalized; otherwise H.
      branch_multiplier: a.
      steps: number of layers from which infinite depth is extrapolated.
      heads: samples in each population; the estimate has a bias of order ``1 / heads``.
      populations: number of independent repetitions, at least 2.
      key: random key of the samples; default ``jax.random.key(0)``.

    Raises:
      InputError: a kernel that no tokens have, an unknown name, or an invalid number.
    """
    start = checked_kernel(start)
    require_whole("tokens", tokens)
    if len(start) % tokens:
        raise InputError(f"tokens is {tokens}: use a divisor of {len(start)}, the size of the kernel.")
    if queries not in QUERIES:
        raise InputError(f"queries is {queries!r}: {did_you_mean(str(queries), QUERIES)}")
    if depth is not None:
        require_whole("depth", depth, also=", or None for the limit")
    if head_dim is not None:
        require_whole("head_dim", head_dim, also=", or None for the limit")
    if scale is not None:
        require_number("scale", scale)
    if scale is not None and head_dim is None:
        raise InputError(f"scale is {scale}, but head_dim is infinite: logits have order one there; leave scale out.")
    if activation is not None:
        get_activation(activation)
    require_number("branch_multiplier", branch_multiplier)
    for name, value, least in (("steps", steps, 1), ("heads", heads, 1), ("populations", populations, 2)):
        require_whole(name, value, least)
    plan = _Plan(tokens, causal, queries, head_dim, activation, norm, heads)
    logit_scale = (head_dim or 1) ** -0.5 if scale is None else scale
    key = jax.random.key(0) if key is None else key
    at_depth = lambda depth: _populations(plan, depth, populations, start, branch_multiplier, logit_scale, key)
    if depth is not None:
        H, error = at_depth(depth)
    else:
        (fine, fine_error), (coarse, _) = at_depth(2 * steps), at_depth(steps)
        # Both depths have the same samples, so their errors are nearly equal.
        H, error = 2 * fine[::2] - coarse, fine_error[::2]
    shape = (len(H), *(len(start) // tokens, tokens) * 2)
    return StreamKernels(jnp.linspace(0.0, 1.0, len(H)), H.reshape(shape), error.reshape(shape))


class _Plan(NamedTuple):
    tokens: int
    causal: bool
    queries: str
    head_dim: int | None
    activation: str | None
    norm: bool
    heads: int


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _populations(
    plan: _Plan, depth: int, populations: int, start: jax.Array, a: float, scale: float, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(L + 1, n, n) mean and standard error; every layer has the same samples, so that kernels are smooth in depth."""

    def one(key: jax.Array) -> jax.Array:
        def layer(H: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            now = H + a**2 / depth * _attended(plan, _covariance(plan, H), scale, key)
            if plan.activation is not None:
                now += a**2 / depth * _fed_forward(plan.activation, _covariance(plan, now))
            return now, H

        end, others = jax.lax.scan(layer, start, None, length=depth)
        return jnp.concatenate([others, end[None]])

    H = jax.lax.map(one, jax.random.split(key, populations))
    return H.mean(0), H.std(0, ddof=1) / populations**0.5


def _covariance(plan: _Plan, H: jax.Array) -> jax.Array:
    """C: that of what a branch reads, exactly symmetric."""
    symmetric = (H + H.T) / 2
    return _normalized(symmetric) if plan.norm else symmetric


def _normalized(H: jax.Array) -> jax.Array:
    deviation = jnp.sqrt(jnp.diagonal(H))
    return H / deviation[:, None] / deviation


def _fed_forward(activation: str, C: jax.Array) -> jax.Array:
    p, q = jnp.broadcast_arrays(jnp.diagonal(C)[:, None], jnp.diagonal(C)[None, :])
    return get_activation(activation).values(p, q, C)


def _attended(plan: _Plan, C: jax.Array, scale: float, key: jax.Array) -> jax.Array:
    """(n, n) ``<<sigma(A) C sigma(A)^T>>`` between n = P T tokens."""
    T, n = plan.tokens, len(C)
    logits_SxPxTxT = _logits(plan, C, scale, key)
    seen = jnp.tril(jnp.ones((T, T), bool)) if plan.causal else jnp.ones((T, T), bool)
    weights = jax.nn.softmax(jnp.where(seen, logits_SxPxTxT, -jnp.inf))
    read = jnp.einsum("sptu,puqv->sptqv", weights, C.reshape(n // T, T, n // T, T))
    return (jnp.einsum("sptqv,sqwv->ptqw", read, weights) / len(weights)).reshape(n, n)


def _logits(plan: _Plan, C: jax.Array, scale: float, key: jax.Array) -> jax.Array:
    """(S, P, T, T) logits of some heads, of queries and keys of the same example."""
    T, n, d = plan.tokens, len(C), plan.head_dim
    P = n // T
    if plan.queries == "zero":
        return jnp.zeros((1, P, T, T), C.dtype)
    of_size_one = plan.queries == "normalized"
    of_tokens = lambda noise: correlated(noise, _normalized(C) if of_size_one else C)
    if d is None:
        all_pairs = of_tokens(of_tokens(jax.random.normal(key, (plan.heads, n, n), C.dtype)).mT)
        examples = jnp.arange(P)
        return all_pairs.reshape(-1, P, T, P, T)[:, examples, :, examples].swapaxes(0, 1)
    q, k = of_tokens(jax.random.normal(key, (2, plan.heads, d, n), C.dtype))
    if of_size_one:
        q, k = (x / jnp.sqrt((x**2).mean(1, keepdims=True)) for x in (q, k))
    q, k = (x.reshape(-1, d, P, T) for x in (q, k))
    return scale * jnp.einsum("sdpt,sdpu->sptu", q, k)
