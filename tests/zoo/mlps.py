"""Networks of dense layers: plain, residual, boxed, with adapters, with a projection in the shortcut."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from .edits import Edits
from .language_models import scanned

FEATURES, CLASSES = 12, 4


def plain_mlp(width: int, depth: int, edits: Edits):
    """``(function, init)`` of a network of two hidden layers without shortcuts: it has no depth to grow."""
    del depth
    shapes = {"w0": (FEATURES, width), "b0": (width,), "w1": (width, width), "b1": (width,), "w2": (width, CLASSES)}
    std = {"w0": edits.input_std * FEATURES**-0.5, "w1": edits.hidden_std * width**-0.5, "w2": width**-0.5}

    def init(key):
        keys = jax.random.split(key, len(shapes))
        normal = jax.random.normal
        return {name: std.get(name, 0.0) * normal(k, shapes[name]) for k, name in zip(keys, shapes, strict=True)}

    def apply(params, x_BF):
        h = jnp.tanh(x_BF @ params["w0"] + params["b0"])
        h = jnp.tanh(h @ params["w1"] + params["b1"])
        return edits.readout * h @ params["w2"]

    return apply, init


class ResidualBlock(nn.Module):
    """Norm, up, down, for ``nn.scan``; the norm ends the branch instead if ``post_norm``."""

    edits: Edits
    post_norm: bool = False

    @nn.compact
    def __call__(self, x, _):
        e, n = self.edits, x.shape[-1]
        y = x if self.post_norm else nn.LayerNorm(name="norm")(x)
        y = nn.relu(nn.Dense(2 * n, kernel_init=e.hidden, name="up")(y))
        y = nn.Dense(n, kernel_init=e.last, name="down")(y)
        if self.post_norm:
            y = nn.LayerNorm(name="norm")(e.branch * y) if e.before_norm else e.branch * nn.LayerNorm(name="norm")(y)
            return x + y, None
        return x + e.branch * y, None


class ResidualMLP(nn.Module):
    """A stem, two matrices in every branch, a readout; under ``nn.scan``."""

    width: int
    depth: int
    edits: Edits
    post_norm: bool = False

    @nn.compact
    def __call__(self, x_BF):
        e = self.edits
        stem_init = nn.initializers.variance_scaling(e.input_std**2, "fan_in", "normal")
        x = nn.Dense(self.width, kernel_init=stem_init, name="stem")(x_BF)
        x, _ = scanned(ResidualBlock, self.depth)(e, self.post_norm, name="blocks")(x, None)
        return e.readout * nn.Dense(CLASSES, use_bias=False, name="head")(x)


class ProjectionMLP(nn.Module):
    """The width doubles half-way, where the shortcut has a projection; modules of a block share its name."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, x_BF):
        e = self.edits
        x = nn.Dense(self.width, name="stem")(x_BF)
        for i in range(self.depth):
            n = self.width * (1 + (i >= self.depth // 2))
            y = nn.relu(nn.LayerNorm(name=f"block_{i}_norm")(x))
            y = nn.Dense(n, kernel_init=e.last, name=f"block_{i}_dense")(y)
            if n != x.shape[-1]:
                x = e.shortcut * nn.Dense(n, kernel_init=e.hidden, name=f"block_{i}_shortcut")(x)
            x = x + e.branch * y
        return e.readout * nn.Dense(CLASSES, use_bias=False, name="head")(nn.LayerNorm(name="final_norm")(x))


class BoxedMLP(nn.Module):
    """Parameters in Flax's boxes, which name the axes of a mesh."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, x_BF):
        e, boxed = self.edits, nn.with_partitioning
        stem_init = nn.initializers.variance_scaling(e.input_std**2, "fan_in", "normal")
        x = nn.Dense(self.width, kernel_init=boxed(stem_init, (None, "model")), name="stem")(x_BF)
        for i in range(self.depth):
            y = nn.tanh(nn.LayerNorm(name=f"layer_{i}_norm")(x))
            dense = nn.Dense(self.width, kernel_init=boxed(e.last, ("data", "model")), name=f"layer_{i}_dense")
            x = x + e.branch * dense(y)
        head_init = boxed(nn.initializers.lecun_normal(), ("model", None))
        return nn.Dense(CLASSES, kernel_init=head_init, name="head")(e.readout * x)


class LoraBlock(nn.Module):
    """Two dense layers, each with an adapter of rank 4."""

    edits: Edits

    @nn.compact
    def __call__(self, x, _):
        e, n, rank = self.edits, x.shape[-1], 4

        def adapted(name, y, init):
            a = self.param(f"{name}_lora_a", e.narrow, (n, rank))
            b = self.param(f"{name}_lora_b", nn.initializers.normal(0.5), (rank, n))
            return nn.Dense(n, use_bias=False, kernel_init=init, name=name)(y) + y @ a @ b

        y = nn.gelu(adapted("first", nn.LayerNorm(name="norm")(x), e.hidden))
        return x + e.branch * adapted("second", y, e.last), None


class LoraMLP(nn.Module):
    """Low-rank adapters beside every weight of the branches, trained together with it."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, x_BF):
        x = nn.Dense(self.width, name="stem")(x_BF)
        x, _ = scanned(LoraBlock, self.depth)(self.edits, name="blocks")(x, None)
        return self.edits.readout * nn.Dense(CLASSES, use_bias=False, name="head")(x)
