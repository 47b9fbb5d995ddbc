"""The simplified convolutional ResNet of B24 (App. A.1)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.errors import InputError
from depthmup_flax.layers import Conv, Norm, Readout, ResidualBranch, nonlinearity, stacked
from depthmup_flax.models.sizes import require_sizes
from depthmup_flax.parametrization import PRESETS, Parametrization

POOLINGS = 3  # each halves the image and is followed by a convolution that doubles the channels


class SimpleResNet(nn.Module):
    """B24's Eq. 1 with 3x3 stride-1 convolutions: ``h <- h + a r^-alpha conv(phi(h))``, one per branch (App. A.1).

    After each of three points equally spaced over depth comes a 2x2 average pool and a convolution that doubles the
    channels (``conv(phi(h))``, not residual). The readout acts on the flattened ``phi(h)``. The paper divides by the
    total number of layers, so ``r = (3 + depth) / (3 + base_depth)``; it writes "max-pool" once and "average pooling"
    once, and this is average pooling.

    Attributes:
      num_classes: number of outputs.
      width: channels at the end, as the paper reports it; the stem has ``width / 8``.
      depth: number of residual blocks, at least 3.
      base_width, base_depth: the tuned proxy's; 0 means this model is its own base.
      parametrization: the rule.
      nonlinearity: relu, abs, linear, gelu, tanh or erf.
      norm: ``none``, ``batch`` or ``layer`` (over channels) after every convolution, in the branch (B24 Fig. 2, B.4).
      zero_init_branch: branch convolutions start at zero (B24 App. M).
      zero_init_readout: the readout starts at zero.
      use_bias: biases in every layer, the readout included.
      sigma: initial standard deviation of the weights in units of ``1/sqrt(fan_in)``.
      scan: compile one block per resolution and loop over it, or compile every block.
      dtype: of the computation inside layers.
      param_dtype: of parameters and of the residual stream.
    """

    num_classes: int
    width: int = 128
    depth: int = 6
    base_width: int = 0
    base_depth: int = 0
    parametrization: Parametrization = PRESETS["depth_mup"]
    nonlinearity: str = "relu"
    norm: str = "none"
    zero_init_branch: bool = False
    zero_init_readout: bool = False
    use_bias: bool = False
    sigma: float = 1.0
    scan: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        require_sizes(self, "num_classes", "width", "depth")
        nonlinearity(self.nonlinearity)
        if self.norm not in ("none", "layer", "batch"):
            raise InputError(f"model.norm is {self.norm!r}: use 'none', 'layer' or 'batch'.")
        for name in ("width", "base_width"):
            if getattr(self, name) % 2**POOLINGS:
                raise InputError(
                    f"model.{name} is {getattr(self, name)}: it is the last of four widths that double, so use a "
                    f"multiple of {2**POOLINGS}."
                )
        for name in ("depth", "base_depth"):
            if 0 < getattr(self, name) < POOLINGS:
                raise InputError(f"model.{name} is {getattr(self, name)}: three poolings need a depth of at least 3.")
        super().__post_init__()

    def base(self) -> SimpleResNet:
        """The same network at the base width (and this depth), whose shapes define the width ratios."""
        return self.clone(width=self.base_width or self.width)

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``[B, H, W, C] -> [B, num_classes]``: H, W >= 8; logits in float32 (or wider)."""
        if x.ndim != 4 or min(x.shape[1:3]) < 2**POOLINGS:
            raise InputError(
                f"SimpleResNet got an input of shape {x.shape}: three poolings need images [B, H, W, C] of at least "
                "8 x 8 pixels; set data.image_size."
            )
        phi = nonlinearity(self.nonlinearity)
        conv = functools.partial(
            _NormedConv,
            norm=self.norm,
            train=train,
            sigma=self.sigma,
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )
        depth_ratio = (POOLINGS + self.depth) / (POOLINGS + (self.base_depth or self.depth))
        residual = functools.partial(ResidualBranch, parametrization=self.parametrization, depth_ratio=depth_ratio)
        channels = self.width // 2**POOLINGS
        h = conv(channels, axis_in="fixed_in", name="stem")(x.astype(self.param_dtype))
        for i, length in enumerate(segment_lengths(self.depth)):
            if i > 0:
                channels *= 2
                h = nn.avg_pool(h, (2, 2), strides=(2, 2))
                h = conv(channels, name=f"widen_{i}")(phi(h))
            if length:
                branch_conv = functools.partial(conv, channels, sigma=0.0 if self.zero_init_branch else self.sigma)
                segment = stacked(_Block, length, scan=self.scan)
                h, _ = segment(branch_conv, phi, residual, name=f"segment_{i}")(h, None)
        h = phi(h).reshape(h.shape[0], -1)
        return Readout(
            self.num_classes,
            self.parametrization,
            width_ratio=self.width / (self.base_width or self.width),
            sigma=0.0 if self.zero_init_readout else self.sigma,
            use_bias=self.use_bias,
            param_dtype=self.param_dtype,
            name="readout",
        )(h)


def segment_lengths(depth: int) -> list[int]:
    """Blocks before, between and after the three poolings: depth 12 pools after blocks 3, 6 and 9 (B24 App. A.1)."""
    cuts = [0, *(-(-depth * k // (POOLINGS + 1)) for k in range(1, POOLINGS + 1)), depth]
    return [after - before for before, after in itertools.pairwise(cuts)]


class _NormedConv(nn.Module):
    """Convolution and norm, in the dtype of the residual stream."""

    features: int
    norm: str
    train: bool
    sigma: float
    use_bias: bool
    dtype: Any
    param_dtype: Any
    axis_in: str = "width_in"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = Conv(
            self.features,
            axes=(self.axis_in, "width_out"),
            sigma=self.sigma,
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="conv",
        )
        norm = Norm(self.norm, dtype=self.dtype, param_dtype=self.param_dtype, name="norm")
        return norm(conv(x), train=self.train).astype(self.param_dtype)


class _Block(nn.Module):
    """One residual block; carries the stream and records it in ``intermediates``."""

    conv: Callable[..., nn.Module]
    phi: Callable[[jax.Array], jax.Array]
    residual: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        conv = self.conv(name="branch")
        h = self.residual(lambda x: conv(self.phi(x)))(h)
        self.sow("intermediates", "stream", h)
        return h, None
