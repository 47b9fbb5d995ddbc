"""The networks as usually written with Flax and Optax alone; the package's must not be slower."""

from __future__ import annotations

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
    """`depthmup_flax.models.ViT` without multipliers, with Flax's attention."""

    width: int
    depth: int
    patch_size: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """``[B, H, W, C] -> [B, 10]``."""
        size = (self.patch_size, self.patch_size)
        h = nn.Conv(self.width, size, size, "VALID", use_bias=False)(x).reshape(len(x), -1, self.width)
        h = h + self.param("positions", nn.initializers.normal(0.02), h.shape[1:])
        token = self.param("token", nn.initializers.normal(0.02), (1, 1, self.width))
        h = jnp.concatenate([jnp.broadcast_to(token, (len(h), 1, self.width)), h], 1)
        h, _ = _scanned(_Layer, self.depth)(self.width)(h, None)
        return nn.Dense(10, use_bias=False)(nn.LayerNorm()(h)[:, 0])


class _Layer(nn.Module):
    width: int

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        h = h + nn.MultiHeadDotProductAttention(num_heads=4, use_bias=False)(nn.LayerNorm()(h))
        z = nn.gelu(nn.Dense(4 * self.width, use_bias=False)(nn.LayerNorm()(h)))
        return h + nn.Dense(self.width, use_bias=False)(z), None


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


NETWORKS = {"res_mlp": ResMLP, "vit": ViT, "simple_resnet": SimpleResNet}


def _scanned(block: type[nn.Module], length: int) -> type[nn.Module]:
    return nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=length)
