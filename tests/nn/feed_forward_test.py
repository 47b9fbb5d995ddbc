"""Feed-forward branches, token by token."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax.nn import transformer as feed_forward
from depthmup_flax.nn.blocks import TransformerConfig
from depthmup_flax.nn.transformer import FeedForward

X = jax.random.normal(jax.random.key(1), (2, 5, 8))


def silu(z):
    return z / (1 + np.exp(-z))


def swiglu(x, p):
    return (silu(x @ p["gate"]["kernel"]) * (x @ p["up"]["kernel"])) @ p["down"]["kernel"]


def of_module(module):
    variables = nn.unbox(jax.jit(module.init)(jax.random.key(0), X))
    return jax.jit(module.apply)(variables, X), jax.tree.map(np.asarray, variables["params"])


@pytest.mark.parametrize(("fields", "hidden"), [({"mlp_ratio": 3}, 24), ({"mlp_features": 20}, 20)])
def test_swiglu_is_shazeers_with_the_hidden_features_that_were_asked_for(fields, hidden):
    y, p = of_module(FeedForward(TransformerConfig(mlp="swiglu", **fields)))
    assert p["gate"]["kernel"].shape == p["up"]["kernel"].shape == (8, hidden)
    np.testing.assert_allclose(y, swiglu(np.asarray(X), p), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
def test_a_program_for_a_gpu_saves_the_arguments_of_an_activation_alone(mlp, monkeypatch):
    module = FeedForward(TransformerConfig(mlp=mlp, mlp_features=11))
    variables = nn.unbox(jax.jit(module.init)(jax.random.key(0), X))

    def saved():
        """Arrays of hidden features that the backward pass reads, and the gradient."""
        _, pull = jax.vjp(lambda variables: jnp.sin(module.apply(variables, X)), variables)
        shapes = [x.shape for x in jax.tree.leaves(pull)]
        return shapes.count((2, 5, 11)), pull(jnp.ones_like(X))

    (all_parts, expected), _ = saved(), monkeypatch.setattr(feed_forward, "target_platform", lambda: "gpu")
    arguments, found = saved()
    assert arguments == {"gelu": 2, "swiglu": 3}[mlp] < all_parts  # and the result, a factor of the next layer
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), found, expected)
