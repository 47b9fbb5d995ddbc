"""The convolutional networks of B24: the simplified ResNet (App. A.1) and the family of He et al. (App. A.2)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.errors import InputError
from depthmup_flax.models.sizes import require_choice, require_sizes
from depthmup_flax.nn.layers import INTO, NORMS, OUT_OF, Conv, Norm, Readout, ResidualBranch, nonlinearity, stacked
from depthmup_flax.parallel.sharding import inner
from depthmup_flax.rule.parametrization import PRESETS, Parametrization

STEM = ("fixed_in", "width_out")  # logical axes
STAGES = 4  # of ResNet, each at half the resolution and twice the channels of the one before
POOLINGS = 3  # of SimpleResNet: each halves the image and is followed by a convolution that doubles the channels


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
      remat: what the backward pass computes again to save memory: ``none``, ``dots`` (all but products with weights)
        or ``full``.
      dtype: of the computation inside layers.
      param_dtype: of parameters and of the residual stream.
    """

    input_kind: ClassVar[str] = "image"

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
    remat: str = "none"
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        require_sizes(self, "num_classes", "width", "depth")
        nonlinearity(self.nonlinearity)
        require_choice(self, "norm", NORMS)
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
        h = conv(channels, axes=STEM, name="stem")(x.astype(self.param_dtype))
        for i, length in enumerate(segment_lengths(self.depth)):
            if i > 0:
                channels *= 2
                h = nn.avg_pool(h, (2, 2), strides=(2, 2))
                h = conv(channels, name=f"widen_{i}")(phi(h))
            if length:
                branch_conv = functools.partial(conv, channels, sigma=0.0 if self.zero_init_branch else self.sigma)
                segment = stacked(_Block, length, scan=self.scan, remat=self.remat)
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


class ResNet(nn.Module):
    """The residual networks of He et al. (2016), two 3x3 convolutions in a branch (B24 App. A.2).

    ``h <- shortcut(h) + a r^-alpha norm(conv(phi(norm(conv(phi(h))))))`` with ``r = depth / base_depth``. The first
    branch of every stage but the first halves the image (stride 2) and doubles the channels; its shortcut is a strided
    1x1 convolution, outside the branch. The multiplier follows the branch's last norm, which would cancel it. As in
    Eq. 1 the activation stands at the beginning of the branch: He et al. have it after the sum, which would keep the
    stream positive. The readout acts on the average of ``phi(h)`` over the image.

    ResNet-18 is ``depth=8``, the default; ResNet-34 is ``depth=16, stage_sizes=(3, 4, 6, 3)``.

    Attributes:
      num_classes: number of outputs.
      width: channels of the stem and of the first stage (64 in ResNet-18); the last stage has 8 times as many.
      depth: L, the number of residual branches, at least 4.
      base_width, base_depth: the tuned proxy's; 0 means this model is its own base.
      stage_sizes: branches in each of the stages, which sum to ``depth``; () spreads them evenly over four.
      parametrization: the rule.
      stem: ``cifar``, a 3x3 convolution; or ``imagenet``, a 7x7 convolution and a 3x3 maximum, both with stride 2.
      nonlinearity: relu, abs, linear, gelu, tanh or erf.
      norm: ``batch``, ``layer`` (over channels) or ``none``, after every convolution.
      zero_init_branch: the branch's last convolution starts at zero (B24 App. M).
      zero_init_readout: the readout starts at zero.
      use_bias: biases in every layer, the readout included.
      sigma: initial standard deviation of the weights in units of ``1/sqrt(fan_in)``.
      scan: compile one block per stage and loop over it, or compile every block.
      remat: what the backward pass computes again to save memory: ``none``, ``dots`` (all but products with weights)
        or ``full``.
      dtype: of the computation inside layers.
      param_dtype: of parameters and of the residual stream.
    """

    input_kind: ClassVar[str] = "image"

    num_classes: int
    width: int = 64
    depth: int = 8
    base_width: int = 0
    base_depth: int = 0
    stage_sizes: tuple[int, ...] = ()
    parametrization: Parametrization = PRESETS["depth_mup"]
    stem: str = "cifar"
    nonlinearity: str = "relu"
    norm: str = "batch"
    zero_init_branch: bool = False
    zero_init_readout: bool = False
    use_bias: bool = False
    sigma: float = 1.0
    scan: bool = True
    remat: str = "none"
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        require_sizes(self, "num_classes", "width", "depth")
        nonlinearity(self.nonlinearity)
        require_choice(self, "norm", NORMS)
        require_choice(self, "stem", ("cifar", "imagenet"))
        if self.stage_sizes and (sum(self.stage_sizes) != self.depth or min(self.stage_sizes) < 1):
            raise InputError(
                f"model.stage_sizes is {tuple(self.stage_sizes)}, but model.depth is {self.depth}: its numbers, each "
                "at least 1, must sum to the depth; or use () for four equal stages."
            )
        if not self.stage_sizes and self.depth < STAGES:
            raise InputError(f"model.depth is {self.depth}: four stages need a depth of at least 4.")
        super().__post_init__()

    def base(self) -> ResNet:
        """The same network at the base width (and this depth), whose shapes define the width ratios."""
        return self.clone(width=self.base_width or self.width)

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``[B, H, W, C] -> [B, num_classes]``: logits in float32 (or wider)."""
        sizes = self.stage_sizes or even_stages(self.depth)
        smallest = 2 ** (len(sizes) - 1) * (4 if self.stem == "imagenet" else 1)
        if x.ndim != 4 or min(x.shape[1:3]) < smallest:
            raise InputError(
                f"ResNet got an input of shape {x.shape}: {len(sizes)} stages behind the {self.stem} stem need images "
                f"[B, H, W, C] of at least {smallest} x {smallest} pixels; set data.image_size or model.stem."
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
        depth_ratio = self.depth / (self.base_depth or self.depth)
        residual = functools.partial(ResidualBranch, parametrization=self.parametrization, depth_ratio=depth_ratio)
        last = functools.partial(conv, sigma=0.0 if self.zero_init_branch else self.sigma)
        side, stride = (7, 2) if self.stem == "imagenet" else (3, 1)
        stem = conv(self.width, axes=STEM, window=(side, side), strides=(stride, stride), name="stem")
        h = stem(x.astype(self.param_dtype))
        if self.stem == "imagenet":
            h = nn.max_pool(h, (3, 3), strides=(2, 2), padding="SAME")
        for i, size in enumerate(sizes):
            channels = self.width * 2**i
            if i > 0:
                h = _DownBlock(channels, conv, last, phi, residual, name=f"down_{i}")(h)
            length = size - (i > 0)
            if length:
                stage = stacked(_TwoConvBlock, length, scan=self.scan, remat=self.remat)
                h, _ = stage(channels, conv, last, phi, residual, name=f"stage_{i}")(h, None)
        return Readout(
            self.num_classes,
            self.parametrization,
            width_ratio=self.width / (self.base_width or self.width),
            sigma=0.0 if self.zero_init_readout else self.sigma,
            use_bias=self.use_bias,
            param_dtype=self.param_dtype,
            name="readout",
        )(phi(h).mean((1, 2)))


def even_stages(depth: int) -> tuple[int, ...]:
    """Branches of four stages, as equal as ``depth`` allows; the third gets the first extra one, as in ResNet-34."""
    size, extra = divmod(depth, STAGES)
    return tuple(size + (place < extra) for place in (3, 1, 0, 2))


class _NormedConv(nn.Module):
    """Convolution and norm, in the dtype of the residual stream."""

    features: int
    norm: str
    train: bool
    sigma: float
    use_bias: bool
    dtype: Any
    param_dtype: Any
    axes: tuple[str, str] = ("width_in", "width_out")
    window: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = Conv(
            self.features,
            self.window,
            self.strides,
            axes=self.axes,
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
        """``[B, H, W, C] -> [B, H, W, C]``, in the form that a scan wants."""
        conv = self.conv(name="branch")
        h = self.residual(lambda x: conv(self.phi(x)))(h)
        self.sow("intermediates", "stream", h)
        return h, None


class _TwoConvBlock(nn.Module):
    """One residual block of `ResNet`; carries the stream and records it in ``intermediates``."""

    channels: int
    conv: Callable[..., nn.Module]
    last_conv: Callable[..., nn.Module]
    phi: Callable[[jax.Array], jax.Array]
    residual: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        first = self.conv(self.channels, axes=INTO, name="conv_1")
        second = self.last_conv(self.channels, axes=OUT_OF, name="conv_2")
        h = self.residual(lambda x: second(self.phi(inner(first(self.phi(x))))))(h)
        self.sow("intermediates", "stream", h)
        return h, None


class _DownBlock(nn.Module):
    """The first block of a stage: half the resolution, ``channels`` in place of half as many."""

    channels: int
    conv: Callable[..., nn.Module]
    last_conv: Callable[..., nn.Module]
    phi: Callable[[jax.Array], jax.Array]
    residual: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        first = self.conv(self.channels, axes=INTO, strides=(2, 2), name="conv_1")
        second = self.last_conv(self.channels, axes=OUT_OF, name="conv_2")
        shortcut = self.conv(self.channels, window=(1, 1), strides=(2, 2), name="shortcut")
        return self.residual(lambda x: second(self.phi(inner(first(self.phi(x))))), shortcut=shortcut)(h)
