"""What a branch computes from the normalized stream ``[B, T, D]``: attention, feed-forwards, recurrences, experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .scales import HEADS, Scales
from .scope import Scope

Branch = Callable[[Scope, jax.Array, Scales], jax.Array]


def attend(q_BTHd: jax.Array, k_BSKd: jax.Array, v_BSKd: jax.Array, scale: float, causal: bool = True) -> jax.Array:
    """Softmax attention ``[B, T, H, d]``; H is a multiple of K, the number of heads of keys and values."""
    groups = q_BTHd.shape[2] // k_BSKd.shape[2]
    k, v = (jnp.repeat(x, groups, axis=2) for x in (k_BSKd, v_BSKd))
    logits = jnp.einsum("bthd,bshd->bhts", q_BTHd, k) * scale
    if causal:
        logits = jnp.where(jnp.tril(jnp.ones(logits.shape[-2:], bool)), logits, -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(logits), v)


def rotate(x_BTHd: jax.Array) -> jax.Array:
    """Rotary positions: pairs of entries turn by an angle that grows with the position."""
    length, d = x_BTHd.shape[1], x_BTHd.shape[-1]
    angles_Te = jnp.arange(length)[:, None] * 100.0 ** (-jnp.arange(d // 2) / (d // 2))
    cos, sin = jnp.cos(angles_Te)[:, None], jnp.sin(angles_Te)[:, None]
    first, second = jnp.split(x_BTHd, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def unit_rms(x: jax.Array) -> jax.Array:
    """``x`` with a root mean square of 1 over the last axis."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def sines(length: int, width: int) -> jax.Array:
    """Fixed positions ``[T, D]``."""
    angles = jnp.arange(length)[:, None] * 100.0 ** (-jnp.arange(width // 2) / (width // 2))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def dense(p: Scope, name: str, y: jax.Array, features: int) -> jax.Array:
    """A product with a kernel ``[in, out]``."""
    return y @ p(name, y.shape[-1], features)


def heads_of(y: jax.Array, heads: int = HEADS) -> jax.Array:
    """``[B, T, D] -> [B, T, H, d]``."""
    return y.reshape(*y.shape[:-1], heads, y.shape[-1] // heads)


def qkv(p: Scope, y: jax.Array) -> tuple[jax.Array, ...]:
    """Queries, keys and values by heads whose dimension grows."""
    return tuple(heads_of(dense(p, name, y, y.shape[-1])) for name in ("query", "key", "value"))


def attention_with(core: Callable[..., jax.Array]) -> Branch:
    """Attention whose ``core(q, k, v, scale)`` computes the rest from ``[B, T, H, d]``."""

    def branch(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
        q, k, v = qkv(p, y)
        return dense(p, "out", core(q, k, v, e.heads(q.shape[-1])).reshape(y.shape), y.shape[-1])

    return branch


attention = attention_with(attend)
rotary = attention_with(lambda q, k, v, scale: attend(rotate(q), rotate(k), v, scale))


def scores_with(change: Callable[[Scope, jax.Array, jax.Array], jax.Array], soft: Any = jax.nn.softmax) -> Branch:
    """Attention whose scores ``[B, H, T, T]`` are changed: ``change(p, scores, q)``."""

    def branch(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
        q, k, v = qkv(p, y)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) * e.heads(q.shape[-1])
        mixed = jnp.einsum("bhts,bshd->bthd", soft(change(p, scores, q)), v)
        return dense(p, "out", mixed.reshape(y.shape), y.shape[-1])

    return branch


def _distances(length: int) -> jax.Array:
    return jnp.clip(jnp.arange(length)[:, None] - jnp.arange(length), -3, 3) + 3


def _table_bias(p: Scope, scores: jax.Array, q: jax.Array) -> jax.Array:
    return scores + p("bias", 7, HEADS)[_distances(scores.shape[-1])].transpose(2, 0, 1)


def _talking(p: Scope, scores: jax.Array, q: jax.Array) -> jax.Array:
    return jnp.einsum("bhts,hg->bgts", scores, p("talk", HEADS, HEADS))


def _capped(p: Scope, scores: jax.Array, q: jax.Array) -> jax.Array:
    return 50.0 * jnp.tanh(scores / 50.0)


def _sink(scores: jax.Array) -> jax.Array:
    wide = jnp.concatenate([scores, jnp.zeros((*scores.shape[:-1], 1))], axis=-1)
    return jax.nn.softmax(wide)[..., :-1]


def shaw(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Scores with learned vectors of relative positions (Shaw et al.)."""
    q, k, v = qkv(p, y)
    relative = p("relative", 7, q.shape[-1])[_distances(y.shape[1])]
    scores = jnp.einsum("bthd,bshd->bhts", q, k) + jnp.einsum("bthd,tsd->bhts", q, relative)
    weights = jax.nn.softmax(scores * e.heads(q.shape[-1]))
    return dense(p, "out", jnp.einsum("bhts,bshd->bthd", weights, v).reshape(y.shape), y.shape[-1])


def transformer_xl(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Learned biases of queries, which keys and fixed positions read."""
    q, k, v = qkv(p, y)
    d = q.shape[-1]
    positions = jnp.sin(jnp.arange(y.shape[1])[:, None] * jnp.ones(y.shape[-1]))
    r = heads_of(dense(p, "position", positions, y.shape[-1]))
    scores = jnp.einsum("bthd,bshd->bhts", q + p("u", HEADS, d), k)
    scores += jnp.einsum("bthd,shd->bhts", q + p("v", HEADS, d), r)
    weights = jax.nn.softmax(scores * e.heads(d))
    return dense(p, "out", jnp.einsum("bhts,bshd->bthd", weights, v).reshape(y.shape), y.shape[-1])


def grouped(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """One head of keys and values for all queries; the number of heads grows."""
    n, d = y.shape[-1], 8
    q = heads_of(dense(p, "query", y, n), n // d)
    k, v = (heads_of(dense(p, name, y, n // 2), n // d // 2) for name in ("key", "value"))
    return dense(p, "out", attend(q, k, v, d**-0.5).reshape(y.shape), n)


def fused(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """One kernel of queries, keys and values, with biases."""
    q, k, v = map(heads_of, jnp.split(dense(p, "qkv", y, 3 * y.shape[-1]) + p("qkv_bias", 3 * y.shape[-1]), 3, axis=-1))
    return dense(p, "out", attend(q, k, v, e.heads(q.shape[-1])).reshape(y.shape), y.shape[-1]) + p("bias", y.shape[-1])


def normed_scores(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Queries and keys with a root mean square of 1 and learned scales."""
    q, k, v = qkv(p, y)
    d = q.shape[-1]
    q, k = unit_rms(q) * p("q_scale", d), unit_rms(k) * p("k_scale", d)
    return dense(p, "out", attend(q, k, v, e.heads(d)).reshape(y.shape), y.shape[-1])


def latent(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Keys and values from a latent array whose size grows (DeepSeek's)."""
    n = y.shape[-1]
    c = unit_rms(dense(p, "down", y, n // 2)) * p("latent_norm", n // 2)
    q = heads_of(dense(p, "query", y, n))
    k, v = (heads_of(dense(p, name, c, n)) for name in ("key", "value"))
    return dense(p, "out", attend(q, k, v, e.heads(q.shape[-1])).reshape(y.shape), n)


def differential(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """The difference of two attentions."""
    q, k, v = qkv(p / "first", y)
    q2, k2 = (heads_of(dense(p, name, y, y.shape[-1])) for name in ("query", "key"))
    scale = e.heads(q.shape[-1])
    mixed = attend(q, k, v, scale) - 0.3 * attend(q2, k2, v, scale)
    return dense(p, "out", mixed.reshape(y.shape), y.shape[-1])


def linear_attention(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Kernelized attention without a softmax, normalized."""
    q, k, v = qkv(p, y)
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    sums = jnp.einsum("bshd,bshe->bhde", k, v)
    mixed = jnp.einsum("bthd,bhde->bthe", q, sums) / jnp.einsum("bthd,bhd->bth", q, k.sum(1))[..., None]
    return dense(p, "out", mixed.reshape(y.shape), y.shape[-1])


linear_bare = attention_with(
    lambda q, k, v, scale: scale * jnp.einsum("bthd,bhde->bthe", q, jnp.einsum("bshd,bshe->bhde", k, v))
)


def retention(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Scores with a fixed decay, a norm of each head behind them (RetNet)."""
    q, k, v = qkv(p, y)
    steps = jnp.arange(y.shape[1])
    decay = jnp.where(steps[:, None] >= steps, 0.9 ** (steps[:, None] - steps), 0.0)
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * e.heads(q.shape[-1]) * decay
    mixed = unit_rms(jnp.einsum("bhts,bshd->bthd", scores, v)).reshape(y.shape)
    return dense(p, "out", jax.nn.silu(dense(p, "gate", y, y.shape[-1])) * mixed, y.shape[-1])


def mlp(p: Scope, y: jax.Array, e: Scales, ratio: int = 2, act: Any = jax.nn.gelu) -> jax.Array:
    """Two matrices."""
    return dense(p, "down", act(e.inner() * dense(p, "up", y, ratio * y.shape[-1])), y.shape[-1])


def mlp4(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """As wide inside as the audited model is wider than the base model."""
    return mlp(p, y, e, 4)


def mlp_bias(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Two matrices and biases."""
    n = y.shape[-1]
    hidden = jax.nn.relu(dense(p, "up", y, 4 * n) + p("up_bias", 4 * n))
    return dense(p, "down", hidden, n) + p("down_bias", n)


def swiglu(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A gated feed-forward."""
    hidden = jax.nn.silu(e.inner() * dense(p, "gate", y, 2 * y.shape[-1])) * dense(p, "up", y, 2 * y.shape[-1])
    return dense(p, "down", hidden, y.shape[-1])


def one_matrix(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """An activation and one matrix."""
    return dense(p, "dense", jax.nn.relu(y), y.shape[-1])


def experts(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """The best two of four experts by one-hot masks."""
    gates, chosen = jax.lax.top_k(jax.nn.softmax(dense(p, "router", y, 4)), 2)
    combine = (jax.nn.one_hot(chosen, 4) * gates[..., None]).sum(-2)
    n = y.shape[-1]
    hidden = jax.nn.gelu(jnp.einsum("btd,edf->btef", y, p("wi", 4, n, 2 * n)))
    return jnp.einsum("btef,efd,bte->btd", hidden, p("wo", 4, 2 * n, n), combine)


def ragged_experts(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Tokens sorted by their expert, ``jax.lax.ragged_dot``."""
    n, tokens = y.shape[-1], y.reshape(-1, y.shape[-1])
    probabilities = jax.nn.softmax(dense(p, "router", tokens, 4))
    chosen = probabilities.argmax(-1)
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=4)
    hidden = jax.nn.gelu(jax.lax.ragged_dot(tokens[order], p("wi", 4, n, 2 * n), sizes))
    out = jax.lax.ragged_dot(hidden, p("wo", 4, 2 * n, n), sizes)[jnp.argsort(order)]
    return (out * probabilities.max(-1, keepdims=True)).reshape(y.shape)


def depthwise(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A causal convolution of each channel, an activation, a matrix."""
    n = y.shape[-1]
    numbers = ("NWC", "WIO", "NWC")
    y = jax.lax.conv_general_dilated(
        y, p("kernel", 3, 1, n), (1,), [(2, 0)], dimension_numbers=numbers, feature_group_count=n
    )
    return dense(p, "mix", jax.nn.silu(y), n)


def convolution(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A convolution over tokens and channels."""
    n = y.shape[-1]
    y = jax.lax.conv_general_dilated(
        jax.nn.relu(y), p("kernel", 3, n, n), (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    return y + p("bias", n)


def lru(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A diagonal linear recurrence between two matrices."""
    n = y.shape[-1]
    decay = jax.nn.sigmoid(p("decay", n))
    u = dense(p, "in", y, n)
    pair = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])
    states = jax.lax.associative_scan(pair, (jnp.broadcast_to(decay, u.shape), u), axis=1)[1]
    return dense(p, "out", jax.nn.gelu(states), n)


def mamba(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A selective recurrence over a state of fixed size, in ``lax.scan``, gated."""
    n = y.shape[-1]
    u, gate = jnp.split(dense(p, "in", y, 2 * n), 2, axis=-1)
    step = jax.nn.softplus(dense(p, "step", u, n) + p("step_bias", n))
    b, c = dense(p, "b", u, 4), dense(p, "c", u, 4)
    decay = jnp.exp(-jnp.exp(p("a_log", n, 4)) * step[..., None])
    inflow = (step * u)[..., None] * b[:, :, None]

    def body(state: jax.Array, now: Any) -> tuple[jax.Array, jax.Array]:
        a, x, c = now
        state = a * state + x
        return state, jnp.einsum("bns,bs->bn", state, c)

    first = jnp.zeros((y.shape[0], n, 4))
    _, out = jax.lax.scan(body, first, tuple(jnp.swapaxes(z, 0, 1) for z in (decay, inflow, c)))
    return dense(p, "out", (jnp.swapaxes(out, 0, 1) + u * p("skip", n)) * jax.nn.silu(gate), n)


def lstm(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """An LSTM over tokens."""
    n = y.shape[-1]
    w, u, bias = p("w", n, 4 * n), p("u", n, 4 * n), p("bias", 4 * n)

    def body(carry: Any, x: jax.Array) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u + bias, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((y.shape[0], n))
    return jnp.swapaxes(jax.lax.scan(body, (zeros, zeros), jnp.swapaxes(y, 0, 1))[1], 0, 1)


def token_mixer(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A feed-forward over tokens."""
    hidden = jax.nn.gelu(jnp.einsum("btn,ts->bsn", y, p("up", y.shape[1], 8)))
    return jnp.einsum("bsn,st->btn", hidden, p("down", 8, y.shape[1]))


def squeeze(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A matrix whose channels are gated by a network of fixed size."""
    out = dense(p, "dense", jax.nn.relu(y), y.shape[-1])
    gate = jax.nn.sigmoid(dense(p, "expand", jax.nn.relu(dense(p, "reduce", out.mean(1), 4)), y.shape[-1]))
    return out * gate[:, None]


def kan(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Learned functions on a fixed grid of radial bases."""
    bases = jnp.exp(-jnp.square(y[..., None] - jnp.linspace(-2.0, 2.0, 4)))
    return jnp.einsum("btng,ngo->bto", bases, p("spline", y.shape[-1], 4, y.shape[-1]))


def hypernetwork(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """A feed-forward whose hidden units are scaled by what a network makes of the mean over tokens."""
    code = jnp.tanh(dense(p, "code", y.mean(1), 4))
    scales = dense(p, "scales", code, 2 * y.shape[-1])[:, None]
    return dense(p, "down", jax.nn.gelu(dense(p, "up", y, 2 * y.shape[-1])) * (1 + scales), y.shape[-1])


def parallel(p: Scope, y: jax.Array, e: Scales) -> jax.Array:
    """Attention and feed-forward in one branch."""
    return attention(p / "attention", y, e) + mlp(p / "mlp", y, e)


BRANCHES: Mapping[str, Branch] = {
    "attention": attention, "rotary": rotary, "table_bias": scores_with(_table_bias),
    "talking": scores_with(_talking), "capped": scores_with(_capped),
    "sink": scores_with(lambda p, s, q: s, _sink), "sigmoid_scores": scores_with(lambda p, s, q: s, jax.nn.sigmoid),
    "relu_scores": scores_with(lambda p, s, q: s, lambda s: jax.nn.relu(s) / s.shape[-1]),
    "shaw": shaw, "transformer_xl": transformer_xl, "grouped": grouped, "fused": fused,
    "normed_scores": normed_scores, "latent": latent, "differential": differential,
    "linear_attention": linear_attention, "linear_bare": linear_bare, "retention": retention,
    "mlp": mlp, "mlp4": mlp4, "mlp_bias": mlp_bias, "swiglu": swiglu, "one_matrix": one_matrix, "experts": experts,
    "ragged_experts": ragged_experts, "depthwise": depthwise, "convolution": convolution, "lru": lru, "mamba": mamba,
    "lstm": lstm, "token_mixer": token_mixer, "squeeze": squeeze, "kan": kan, "hypernetwork": hypernetwork,
    "parallel": parallel,
}  # fmt: skip


# Without weights: functions of the (normalized) stream.
def _ffts(y: jax.Array) -> jax.Array:
    return jnp.fft.fft2(y).real / y.shape[-1] ** 0.5  # otherwise it grows with the width


def _blur(y: jax.Array) -> jax.Array:
    n = y.shape[-1]
    kernel = jnp.array([0.25, 0.5, 0.25])[:, None, None] * jnp.ones((1, 1, n))
    return jax.lax.conv_general_dilated(
        y, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=n
    )


def _average(y: jax.Array) -> jax.Array:
    sums = jax.lax.reduce_window(y, 0.0, jax.lax.add, (1, 3, 1), (1, 1, 1), "SAME")
    return sums / 3.0 - y


def _self_similar(y: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.einsum("btn,bsn->bts", y, y) / y.shape[-1]) @ y


def _decayed(y: jax.Array) -> jax.Array:
    step = lambda state, now: (0.9 * state + now, 0.9 * state + now)
    return jnp.swapaxes(jax.lax.scan(step, jnp.zeros_like(y[:, 0]), jnp.swapaxes(y, 0, 1))[1], 0, 1)


WEIGHTLESS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "average_pool": _average,
    "fft": _ffts,
    "shift": lambda y: jnp.roll(y, 1, axis=1),
    "causal_mean": lambda y: jnp.cumsum(y, axis=1) / (1.0 + jnp.arange(y.shape[1]))[:, None],
    "blur": _blur,
    "fixed_matrix": lambda y: jnp.einsum("btn,ts->bsn", y, jnp.cos(jnp.arange(36.0)).reshape(6, 6)),
    "self_similar": _self_similar,
    "decayed": _decayed,
    "tanh": jnp.tanh,
    "sort": lambda y: jnp.sort(y, axis=1),
}
