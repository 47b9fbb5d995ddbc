"""Every `model.attention` is softmax attention, with its gradients, on the device that runs the tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax.devices import sharding
from depthmup_flax.nn.attention import ATTENTIONS, SelfAttention
from depthmup_flax.nn.blocks import TransformerConfig

pytestmark = pytest.mark.gpu

HEADS, KV_HEADS, HEAD_DIM, BASE_HEAD_DIM = 4, 2, 16, 8
WIDTH = HEADS * HEAD_DIM
SHAPES = {"query": WIDTH, "key": KV_HEADS * HEAD_DIM, "value": KV_HEADS * HEAD_DIM, "out": WIDTH}


def by_hand(kernels, x, causal):
    """Head by head, with logits times ``sqrt(d_base) / d``."""
    q, k, v = (x @ kernels[name] for name in ("query", "key", "value"))
    mixed = []
    for head in range(HEADS):
        own, shared = (slice(n * HEAD_DIM, (n + 1) * HEAD_DIM) for n in (head, head * KV_HEADS // HEADS))
        logits = jnp.einsum("btd,bsd->bts", q[..., own], k[..., shared]) * BASE_HEAD_DIM**0.5 / HEAD_DIM
        if causal:
            logits = jnp.where(np.tri(x.shape[1], dtype=bool), logits, -jnp.inf)
        weights = jnp.exp(logits - logits.max(-1, keepdims=True))
        mixed.append(weights / weights.sum(-1, keepdims=True) @ v[..., shared])
    return jnp.concatenate(mixed, -1) @ kernels["out"]


def value_and_gradients(function, kernels, x):
    out, pull = jax.vjp(function, kernels, x)
    return out, *pull(jnp.cos(3 * out))


@functools.cache
def in_float64(tokens, causal):
    """Kernels and inputs, and the formula's values and gradients for them."""
    rng = np.random.default_rng(0)
    kernels = {name: rng.normal(size=(WIDTH, features)) / 8 for name, features in SHAPES.items()}
    x = rng.normal(size=(3, tokens, WIDTH))
    with jax.enable_x64(True):
        exact = jax.jit(lambda kernels, x: value_and_gradients(lambda k, x: by_hand(k, x, causal), kernels, x))
        return (kernels, x), jax.device_get(exact(kernels, x))


@pytest.mark.parametrize(("tokens", "causal"), [(16, True), (17, False), (17, True)])  # cuDNN refuses odd numbers
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_and_its_gradients_are_those_of_the_formula_in_float64(attention, dtype, tokens, causal):
    given, expected = in_float64(tokens, causal)
    config = TransformerConfig(
        num_heads=HEADS, num_kv_heads=KV_HEADS, base_head_dim=BASE_HEAD_DIM, causal=causal, attention=attention,
        dtype=dtype,
    )  # fmt: skip
    mesh = sharding.make_mesh(devices=jax.devices()[:1])

    def ours(kernels, x):
        params = {name: {"kernel": kernel} for name, kernel in kernels.items()}
        with sharding.activations_on(mesh):
            return SelfAttention(config).apply({"params": params}, x).astype(jnp.float32)

    single = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), given)
    found = jax.jit(lambda kernels, x: value_and_gradients(ours, kernels, x))(*single)
    tolerance = {"float32": 1e-5, "bfloat16": 3e-2}[dtype]  # of the largest entry: eight roundings of 0.4 %
    for mine, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())
