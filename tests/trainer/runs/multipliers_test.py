"""`ResidualNetwork.multipliers`: with the parameters alone, a reader computes the network's outputs."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import depthmup_flax as dm

RULE = dm.get_parametrization("completep", branch_multiplier=0.7, gamma0=2.0)


def in_double_precision(params):
    return {name: np.asarray(array, np.float64) for name, array in flatten_dict(params, sep="/").items()}


def layer_norm(x, norm):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * norm["scale"] + norm["bias"]


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gpt(arrays, factors, tokens, heads):
    """The logits of `GPT` with a tied readout in NumPy, in double precision."""
    h = arrays["stem/embedding"][tokens] + arrays["positions"]
    of_block = {name.removeprefix("transformer/blocks/"): array for name, array in arrays.items() if "/blocks/" in name}
    split = lambda x: x.reshape(*x.shape[:-1], heads, -1).swapaxes(1, 2)
    for i in range(len(of_block["mlp/up/kernel"])):
        block = {name: array[i] for name, array in of_block.items()}
        norm = lambda name: {part: block[f"{name}/layer/{part}"] for part in ("scale", "bias")}  # noqa: B023
        x = layer_norm(h, norm("attention_norm"))
        q, k, v = (split(x @ block[f"attention/{name}/kernel"]) for name in ("query", "key", "value"))
        scores = np.where(np.tri(len(h[0])), q @ k.swapaxes(-1, -2) * factors["attention"], -np.inf)
        mixed = (softmax(scores) @ v).swapaxes(1, 2).reshape(h.shape)
        h = h + factors["branch"] * (mixed @ block["attention/out/kernel"])
        x = layer_norm(h, norm("mlp_norm"))
        h = h + factors["branch"] * (gelu(x @ block["mlp/up/kernel"]) @ block["mlp/down/kernel"])
    h = layer_norm(h, {part: arrays[f"transformer/norm/layer/{part}"] for part in ("scale", "bias")})
    return h @ arrays["stem/embedding"].T * factors["readout"] * factors["output"]


def test_a_transformer_has_the_scale_of_attention_and_of_a_tied_readout():
    model = dm.GPT(11, width=16, depth=2, base_width=8, base_depth=1, num_heads=2, rule=RULE, tied=True)
    tokens = np.random.default_rng(0).integers(0, 11, (2, 6))
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), tokens))["params"]
    params = jax.tree.map(lambda x: x + 0.3 * np.cos(np.arange(x.size)).reshape(x.shape), params)  # queries start at 0
    logits = gpt(in_double_precision(params), model.multipliers, tokens, 2)
    np.testing.assert_allclose(logits, jax.jit(model.apply)({"params": params}, tokens), rtol=1e-4, atol=1e-5)


def test_multipliers_are_the_formulas_of_the_papers():
    resnet = dm.SimpleResNet(10, width=64, depth=21, base_width=16, base_depth=3)  # r counts the three poolings
    assert resnet.multipliers == pytest.approx({"branch": (24 / 6) ** -0.5, "readout": 1 / 4, "output": 1})
    heads = dm.ViT(10, width=64, depth=8, base_width=16, base_depth=2, num_heads=4, rule=RULE)
    attention = 4**0.5 / 16  # sqrt(d_base) / d
    assert heads.multipliers == pytest.approx(
        {"branch": 0.7 / 4, "readout": 1 / 4, "output": 1 / 2, "attention": attention}
    )
