"""The networks as usually written with Flax and Optax alone; the package's must not be slower."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

FIELDS = ("width", "depth", "patch_size")


class ResMLP(nn.Module):
    """`depthmup_flax.models.ResMLP` without multipliers."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """``[B, ...] -> [B, 10]``."""
        h = nn.Dense(self.width, use_bias=False)(x.reshape(len(x), -1))
        h, _ = _scanned(_MLPBlock, self.depth)(self.width)(h, None)
        return nn.Dense(10, use_bias=False)(h)


class _MLPBlock(nn.Module):
    width: int

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        z = nn.relu(nn.Dense(self.width, use_bias=False)(h))
        return h + z - z.mean(-1, keepdims=True), None


class ViT(nn.Module):
    """`depthmup_flax.models.ViT` without multipliers, with Flax's attention; big_vision's, if not scanned."""

    width: int
    depth: int
    patch_size: int
    num_heads: int = 4
    classes: int = 10
    scan: bool = True
    dtype: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """``[B, H, W, C] -> [B, classes]``."""
        size = (self.patch_size, self.patch_size)
        h = nn.Conv(self.width, size, size, "VALID", use_bias=False, dtype=self.dtype)(x)
        h = h.reshape(len(x), -1, self.width)
        h = h + self.param("positions", nn.initializers.normal(0.02), h.shape[1:])
        token = self.param("token", nn.initializers.normal(0.02), (1, 1, self.width))
        h = jnp.concatenate([jnp.broadcast_to(token, (len(h), 1, self.width)), h], 1)
        h = _layers(h, self.depth, self.scan, num_heads=self.num_heads, dtype=self.dtype)
        return nn.Dense(self.classes, use_bias=False)(nn.LayerNorm()(h)[:, 0])


class GPT(nn.Module):
    """`depthmup_flax.models.GPT` without multipliers, with Flax's attention."""

    width: int
    depth: int
    num_heads: int
    classes: int
    dtype: str | None = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """``[B, T] -> [B, T, classes]``."""
        h = nn.Embed(self.classes, self.width)(tokens)
        h = h + self.param("positions", nn.initializers.normal(0.02), h.shape[1:])
        h = _layers(h, self.depth, False, num_heads=self.num_heads, causal=True, dtype=self.dtype)
        logits = nn.Dense(self.classes, use_bias=False, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(h))
        return logits.astype(jnp.float32)


def _layers(h: jax.Array, depth: int, scan: bool, **fields: Any) -> jax.Array:
    width = h.shape[-1]
    if scan:
        return _scanned(_Layer, depth)(width, **fields)(h, None)[0]
    for _ in range(depth):
        h, _ = _Layer(width, **fields)(h, None)
    return h


class _Layer(nn.Module):
    width: int
    num_heads: int
    causal: bool = False
    dtype: str | None = None

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        norm, dense = partial(nn.LayerNorm, dtype=self.dtype), partial(nn.Dense, use_bias=False, dtype=self.dtype)
        attention = nn.MultiHeadDotProductAttention(num_heads=self.num_heads, use_bias=False, dtype=self.dtype)
        mask = nn.make_causal_mask(h[..., 0]) if self.causal else None
        h = h + attention(norm()(h), mask=mask)
        z = nn.gelu(dense(4 * self.width)(norm()(h)))
        return h + dense(self.width)(z), None


class SimpleResNet(nn.Module):
    """`depthmup_flax.models.SimpleResNet` without multipliers; unrolled, as scans of convolutions are slow on CPU."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """``[B, H, W, C] -> [B, 10]``."""
        cuts = [-(-self.depth * k // 4) for k in range(1, 4)]
        channels = self.width // 8
        h = nn.Conv(channels, (3, 3), use_bias=False)(x)
        for block in range(self.depth):
            h = h + nn.Conv(channels, (3, 3), use_bias=False)(nn.relu(h))
            for _ in range(cuts.count(block + 1)):
                channels *= 2
                h = nn.Conv(channels, (3, 3), use_bias=False)(nn.relu(nn.avg_pool(h, (2, 2), (2, 2))))
        return nn.Dense(10, use_bias=False)(nn.relu(h).reshape(len(h), -1))


class ResNet(nn.Module):
    """`depthmup_flax.models.ResNet` with the stem for large images, without multipliers: ResNet-18 at depth 8."""

    width: int
    depth: int
    classes: int
    dtype: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C] -> [B, classes]``."""
        conv = partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = partial(nn.BatchNorm, use_running_average=False, dtype=self.dtype)
        h = norm()(conv(self.width, (7, 7), 2)(x))
        h = nn.max_pool(h, (3, 3), (2, 2), "SAME")
        for place in range(self.depth):
            stride = 2 if place > 0 and place % (self.depth // 4) == 0 else 1
            channels = h.shape[-1] * stride
            z = norm()(conv(channels, (3, 3), stride)(nn.relu(h)))
            z = norm()(conv(channels, (3, 3))(nn.relu(z)))
            shortcut = h if stride == 1 else norm()(conv(channels, (1, 1), stride)(h))
            h = shortcut + z
        logits = nn.Dense(self.classes, use_bias=False, dtype=self.dtype)(nn.relu(h).mean((1, 2)))
        return logits.astype(jnp.float32)


NETWORKS = {"res_mlp": ResMLP, "vit": ViT, "simple_resnet": SimpleResNet}


def _scanned(block: type[nn.Module], length: int) -> type[nn.Module]:
    return nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=length)
