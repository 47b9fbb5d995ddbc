"""Small models in the styles of public code, with the rule's multipliers and with single edits that break them."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from depthmup_flax import Parametrization, get_parametrization

RULE = get_parametrization("depth_mup")
WIDTH, DEPTH = 16, 2  # of the base model
TOKENS = jax.ShapeDtypeStruct((2, 6), jnp.int32)
IMAGES = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)
VOCABULARY = 40


class GPT(nn.Module):
    """A pre-norm decoder; ``edit`` names what differs from the right model."""

    width: int = 2 * WIDTH
    depth: int = 2 * DEPTH
    edit: str = ""
    tied: bool = False
    head_dim: int = 8
    style: str = "heads"  # "heads": their number grows; "dims": their dimension

    def rms(self, x, name):
        scale = self.param(name, nn.initializers.zeros, (x.shape[-1],))
        return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * (1 + scale)

    def weight(self, name, *shape):
        return self.param(name, nn.initializers.lecun_normal(), shape)

    def attention(self, y, i):
        heads, d = (self.width // self.head_dim, self.head_dim) if self.style == "heads" else (2, self.width // 2)
        kv = {"gqa": 2, "mqa": 1}.get(self.style, heads)
        if self.style in ("gqa", "mqa"):
            heads, d = self.width // self.head_dim, self.head_dim
        q = jnp.einsum("btd,dhk->bthk", y, self.weight(f"q_{i}", self.width, heads, d))
        k = jnp.einsum("btd,dhk->bthk", y, self.weight(f"k_{i}", self.width, kv, d))
        v = jnp.einsum("btd,dhk->bthk", y, self.weight(f"v_{i}", self.width, kv, d))
        k, v = (jnp.repeat(a, heads // kv, axis=2) for a in (k, v))
        base_d = WIDTH // 2 if self.style == "dims" else d
        q = q * (d**-0.5 if self.edit == "sqrt_scale" else RULE.attention_scale(d, base_d))
        scores = jnp.einsum("bthk,bshk->bhts", q, k)
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
        mixed = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), v)
        return jnp.einsum("bthk,hkd->btd", mixed, self.weight(f"o_{i}", heads, d, self.width))

    def gated(self, y, i):
        up = jax.nn.silu(y @ self.weight(f"gate_{i}", self.width, 2 * self.width))
        up = up * (y @ self.weight(f"up_{i}", self.width, 2 * self.width))
        return up @ self.weight(f"down_{i}", 2 * self.width, self.width)

    @nn.compact
    def __call__(self, tokens):
        table = self.param("embedding", nn.initializers.normal(1.0), (VOCABULARY, self.width))
        x = table[tokens]
        if self.edit == "sqrt_embedding":
            x = x * jnp.sqrt(self.width)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, tokens.shape[1], self.width))
        c = 1.0 if self.edit == "no_multiplier" else RULE.residual_multiplier(self.depth / DEPTH)
        for i in range(self.depth):
            y = self.rms(x, f"norm_a_{i}")
            x = x + c * self.attention(y, i)
            y = self.gated(self.rms(x, f"norm_b_{i}"), i)
            x = x + self.rms(c * y, f"norm_c_{i}") if self.edit == "norm_after" else x + c * y
        x = self.rms(x, "norm")
        if self.edit != "no_readout":
            x = x * RULE.readout_multiplier(self.width / WIDTH)
        if self.edit == "readout_twice":
            x = x / self.width**0.5
        logits = x @ (table.T if self.tied else self.weight("head", self.width, VOCABULARY))
        if self.edit == "soft_cap":
            logits = 30 * jnp.tanh(logits / 30)
        return (logits, {"aux": x}) if self.edit == "tuple" else logits


def gpt(**kwargs):
    """The model and its base."""
    return GPT(**kwargs), GPT(**{**kwargs, "width": WIDTH, "depth": DEPTH})


class MoE(nn.Module):
    """Soft mixtures of experts, whose number grows, not their size."""

    width: int
    depth: int
    experts: int = 0  # 0: by the width

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="stem")(x)
        experts, inner = self.experts or self.width // 8, 12
        init = nn.initializers.lecun_normal(batch_axis=0)
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"norm_{i}")(h)
            gates = jax.nn.softmax(nn.Dense(experts, use_bias=False, name=f"router_{i}")(y))
            wi = self.param(f"wi_{i}", init, (experts, self.width, inner))
            wo = self.param(f"wo_{i}", init, (experts, inner, self.width))
            y = jnp.einsum("...ef,efd->...ed", nn.relu(jnp.einsum("...d,edf->...ef", y, wi)), wo)
            h = h + RULE.residual_multiplier(self.depth / DEPTH) * jnp.einsum("...e,...ed->...d", gates, y)
        return nn.Dense(5, name="head")(h * RULE.readout_multiplier(self.width / WIDTH))


class LoRA(nn.Module):
    """A feed-forward network with low-rank additions; ``merged``: added to the weights."""

    width: int
    depth: int
    merged: bool = False

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="stem")(x)
        init = nn.initializers.lecun_normal()
        for i in range(self.depth):
            w = self.param(f"w_{i}", init, (self.width, self.width))
            a = self.param(f"a_{i}", init, (self.width, 4))
            b = self.param(f"b_{i}", nn.initializers.zeros, (4, self.width))
            y = nn.LayerNorm(name=f"norm_{i}")(nn.relu(h))
            y = y @ (w + 0.25 * (a @ b)) if self.merged else y @ w + 0.25 * ((y @ a) @ b)
            h = h + RULE.residual_multiplier(self.depth / DEPTH) * y
        return nn.Dense(5, name="head")(h * RULE.readout_multiplier(self.width / WIDTH))


class ConvNet(nn.Module):
    """Stages of blocks with projected shortcuts, squeeze-excite and depthwise convolutions."""

    width: int
    stages: tuple[int, ...]
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train=True):
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, axis_name=self.axis_name)
        c = RULE.residual_multiplier(sum(self.stages) / 2)
        h = nn.relu(norm(name="stem_norm")(nn.Conv(self.width, (3, 3), name="stem")(x)))
        for s, blocks in enumerate(self.stages):
            n = self.width * 2**s
            for j in range(blocks):
                at = f"stage{s}_block{j}"
                y = nn.relu(norm(name=f"{at}_norm1")(nn.Conv(n, (3, 3), name=f"{at}_conv1")(h)))
                y = nn.Conv(n, (3, 3), feature_group_count=n, name=f"{at}_depthwise")(y)
                squeezed = nn.relu(nn.Conv(4, (1, 1), name=f"{at}_squeeze")(y.mean((1, 2), keepdims=True)))
                y = y * nn.sigmoid(nn.Conv(n, (1, 1), name=f"{at}_excite")(squeezed))
                y = nn.Conv(n, (1, 1), name=f"{at}_conv2")(y)
                y = c * norm(name=f"{at}_norm2")(y)
                if s > 0 and j == 0:
                    h = norm(name=f"{at}_norm_proj")(nn.Conv(n, (1, 1), name=f"{at}_conv_proj")(h))
                h = nn.relu(h + y)
        h = h.mean((1, 2)) * RULE.readout_multiplier(self.width / WIDTH)
        return nn.Dense(5, name="head")(h)


class Looped(nn.Module):
    """The same block several times: in a Python loop or in a scan."""

    width: int
    depth: int
    scan: bool = False
    rule: Parametrization = RULE

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="stem")(x)
        w = self.param("w", nn.initializers.lecun_normal(), (self.width, self.width))
        step = lambda h: h + self.rule.residual_multiplier(self.depth / DEPTH) * nn.relu(h @ w)
        if self.scan:
            h, _ = jax.lax.scan(lambda h, _: (step(h), None), h, None, length=self.depth)
        else:
            for _ in range(self.depth):
                h = step(h)
        return nn.Dense(5, name="head")(h * RULE.readout_multiplier(self.width / WIDTH))


class PooledViT(nn.Module):
    """A scanned encoder with Flax's attention, and attention pooling with a learned query (MAP head)."""

    width: int
    depth: int
    post_norm: bool = False

    @nn.compact
    def __call__(self, x):
        h = nn.Conv(self.width, (2, 2), (2, 2), name="patches")(x).reshape(x.shape[0], -1, self.width)
        c, width, post_norm = RULE.residual_multiplier(self.depth / DEPTH), self.width, self.post_norm

        class Block(nn.Module):
            @nn.compact
            def __call__(self, h, _):
                norm_1, norm_2 = nn.LayerNorm(name="norm_1"), nn.LayerNorm(name="norm_2")
                attention = nn.MultiHeadDotProductAttention(width // 8, name="attention")
                mlp = nn.Sequential([nn.Dense(2 * width, name="up"), nn.gelu, nn.Dense(width, name="down")], name="mlp")
                if post_norm:
                    h = norm_1(h + c * attention(h, h))
                    return norm_2(h + c * mlp(h)), None
                y = norm_1(h)
                h = h + c * attention(y, y)
                return h + c * mlp(norm_2(h)), None

        blocks = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)
        h, _ = blocks(name="blocks")(h, None)
        probe = self.param("probe", nn.initializers.normal(1.0), (1, 1, self.width))
        probe = jnp.tile(probe, [h.shape[0], 1, 1])
        h = nn.MultiHeadDotProductAttention(self.width // 8, name="pool")(probe, h)[:, 0]
        h = h + nn.Dense(self.width, name="pool_mlp")(nn.LayerNorm(name="pool_norm")(h))
        return nn.Dense(5, name="head")(h * RULE.readout_multiplier(self.width / WIDTH))


class ScannedNNX(nnx.Module):
    """Blocks that NNX stacks and scans, with dropout in training."""

    def __init__(self, width, depth, rngs):
        self.width, self.depth = width, depth
        self.stem, self.head = nnx.Linear(6, width, rngs=rngs), nnx.Linear(width, 5, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        stacked = nnx.vmap(lambda rngs: nnx.Linear(width, width, rngs=rngs), in_axes=0, out_axes=0)
        self.layers = nnx.split_rngs(splits=depth)(stacked)(rngs)

    def __call__(self, x):
        c = RULE.residual_multiplier(self.depth / DEPTH)
        run = nnx.scan(lambda h, layer: h + c * nnx.relu(layer(h)), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        h = run(self.dropout(self.stem(x)), self.layers)
        return self.head(h * RULE.readout_multiplier(self.width / WIDTH))
