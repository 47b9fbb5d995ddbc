"""The convolutional networks of B24: the simplified ResNet (App. A.1) and the family of He et al. (App. A.2)."""

from __future__ import annotations

import itertools

import flax.linen as nn
import jax

from depthmup_flax.devices.sharding import stream
from depthmup_flax.models.base import Classifier, ResidualNetwork, require
from depthmup_flax.nn.blocks import ActivationConfig, stacked
from depthmup_flax.nn.layers import HIDDEN, INTO, NONLINEARITIES, NORMS, OUT_OF, STEM, Conv, max_pool
from depthmup_flax.util.errors import InputError

STAGES = 4  # of ResNet by default, each with half the resolution and twice the channels of the previous one
POOLINGS = 3  # of SimpleResNet: each halves the image; a convolution then doubles the channels


class _NormedConv(nn.Module):
    """Convolution and norm, in the dtype of the residual stream; ``ends_branch`` as ``zero_init_branch`` means it."""

    config: ActivationConfig
    features: int
    axes: tuple[str, str] = HIDDEN
    window: int = 3
    stride: int = 1
    ends_branch: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, window, strides = self.config, (self.window, self.window), (self.stride, self.stride)
        sigma = 0.0 if self.ends_branch and config.zero_init_branch else config.sigma
        dtypes = config.dtype, config.param_dtype
        conv = Conv(self.features, window, strides, self.axes, sigma, config.use_bias, *dtypes, name="conv")
        return config.normalization("norm")(conv(x)).astype(config.param_dtype)


class ConvNetwork(ResidualNetwork):
    """The base of `SimpleResNet` and `ResNet`.

    Attributes:
      norm: ``none``, ``batch`` or ``layer`` (over channels), after every convolution (B24 Fig. 2, B.4).
    """

    choices = ResidualNetwork.choices | {"norm": NORMS, "nonlinearity": NONLINEARITIES}

    nonlinearity: str = "relu"  # relu, abs, linear, gelu, tanh or erf
    zero_init_branch: bool = False  # the last convolution of a branch starts at zero (B24 App. M)


class SimpleResNet(ConvNetwork, Classifier):
    """B24's Eq. 1 with 3x3 stride-1 convolutions: ``h <- h + a r^-alpha conv(phi(h))``, one per branch (App. A.1).

    At three points equally spaced over depth, a 2x2 average pool and a convolution that doubles the channels follow
    (``conv(phi(h))``, not residual). The readout acts on the flattened ``phi(h)``. The paper divides by the total
    number of layers, so ``r = (3 + depth) / (3 + base_depth)``; it mentions both "max-pool" and "average pooling".
    Other fields: `ConvNetwork` and `ResidualNetwork`.
    """

    width: int = 128  # channels at the end, as the paper reports it; the stem has ``width / 8``
    depth: int = 6  # number of residual blocks, at least 3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("width", "base_width"):
            value = getattr(self, name)
            require(value % 2**POOLINGS == 0, f"{name} is {value}: use a multiple of 8: channels double three times.")
        for name in ("depth", "base_depth"):
            value = getattr(self, name)
            require(value == 0 or value >= POOLINGS, f"{name} is {value}: three poolings need a depth of at least 3.")

    @property
    def depth_ratio(self) -> float:
        """``r``, the number of layers over the base model's."""
        return (POOLINGS + self.depth) / (POOLINGS + (self.base_depth or self.depth))

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``[B, H, W, C] -> [B, num_classes]``: H, W >= 8; logits, at least float32."""
        if x.ndim != 4 or min(x.shape[1:3]) < 2**POOLINGS:
            raise InputError(f"an input has shape {x.shape}: use at least 8 x 8 pixels (data.image_size).")
        config = self.config(ActivationConfig, train=train)
        channels = self.width // 2**POOLINGS
        h = _NormedConv(config, channels, STEM, name="stem")(x.astype(self.param_dtype))
        for i, length in enumerate(segment_lengths(self.depth)):
            if i > 0:
                channels *= 2
                h = nn.avg_pool(h, (2, 2), strides=(2, 2))
                h = _NormedConv(config, channels, name=f"widen_{i}")(config.phi(h))
            if length:
                segment = stacked(_Block, length, scan=self.scan, remat=self.remat)
                h, _ = segment(config, name=f"segment_{i}")(stream(h), None)
        return self.logits(config.phi(h).reshape(h.shape[0], -1), self.num_classes)


def segment_lengths(depth: int) -> list[int]:
    """Blocks before, between and after the three poolings: depth 12 pools after blocks 3, 6 and 9 (B24 App. A.1)."""
    cuts = [0, *(-(-depth * k // (POOLINGS + 1)) for k in range(1, POOLINGS + 1)), depth]
    return [after - before for before, after in itertools.pairwise(cuts)]


class _Block(nn.Module):
    """One residual block of `SimpleResNet`; carries the stream and records it in ``intermediates``."""

    config: ActivationConfig

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        config = self.config
        conv = _NormedConv(config, h.shape[-1], ends_branch=True, name="branch")
        h = config.residual(lambda x: conv(config.phi(x)))(h)
        self.sow("intermediates", "stream", h)
        return h, None


class ResNet(ConvNetwork, Classifier):
    """The residual networks of He et al. (2016), two 3x3 convolutions in a branch (B24 App. A.2).

    ``h <- shortcut(h) + a r^-alpha norm(conv(phi(norm(conv(phi(h))))))`` with ``r = depth / base_depth``. The first
    branch of every stage but the first halves the image (stride 2) and doubles the channels; its shortcut is a strided
    1x1 convolution, outside the branch. The multiplier follows the branch's last norm, which would cancel it. As in
    Eq. 1 the activation comes first in the branch; in He et al. it follows the sum, so the stream is positive. The
    readout acts on the average of ``phi(h)`` over the image.

    Branches have two matrices in sequence, for which the default preset is not optimal in theory (TP6 section 9):
    reproduction/pages/which_exponent.md says what was measured.

    ResNet-18 is ``depth=8``, the default; ResNet-34 is ``depth=16, stage_sizes=(3, 4, 6, 3)``. Other fields:
    `ConvNetwork` and `ResidualNetwork`.
    """

    choices = ConvNetwork.choices | {"stem": ("cifar", "imagenet")}

    width: int = 64  # channels of the stem and of the first stage (64 in ResNet-18); the last stage has 8 times as many
    depth: int = 8  # L, the number of residual branches, at least 4
    # Branches in each stage, which sum to ``depth``; (): four stages, as equal as possible
    stage_sizes: tuple[int, ...] = ()
    # ``cifar``, a 3x3 convolution; or ``imagenet``, a 7x7 convolution and a 3x3 maximum, both with stride 2
    stem: str = "cifar"
    norm: str = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes, depth = tuple(self.stage_sizes), self.depth
        require(
            not sizes or (sum(sizes) == depth and min(sizes) >= 1),
            f"stage_sizes is {sizes}: use numbers of at least 1 that sum to model.depth, {depth}, or ().",
        )
        require(bool(sizes) or depth >= STAGES, f"depth is {depth}: four stages need a depth of at least 4.")
        base, stages = self.base_depth, len(sizes) or STAGES
        require(
            base == 0 or base >= stages, f"base_depth is {base}: {stages} stages need a depth of at least {stages}."
        )

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``[B, H, W, C] -> [B, num_classes]``: logits, at least float32."""
        sizes = self.stage_sizes or even_stages(self.depth)
        large = self.stem == "imagenet"
        smallest = 2 ** (len(sizes) - 1) * (4 if large else 1)
        if x.ndim != 4 or min(x.shape[1:3]) < smallest:
            raise InputError(
                f"ResNet got an input of shape {x.shape}: {len(sizes)} stages after the {self.stem} stem need images "
                f"[B, H, W, C] of at least {smallest} x {smallest} pixels. Set data.image_size or model.stem."
            )
        config = self.config(ActivationConfig, train=train)
        window, stride = (7, 2) if large else (3, 1)
        stem = _NormedConv(config, self.width, STEM, window, stride, name="stem")
        h = stem(x.astype(self.param_dtype))
        if large:
            h = max_pool(h, self.dtype or h.dtype)
        h = stream(h)
        for i, size in enumerate(sizes):
            if i > 0:
                h, _ = _TwoConvBlock(config, down=True, name=f"down_{i}")(h, None)
            if length := size - (i > 0):
                stage = stacked(_TwoConvBlock, length, scan=self.scan, remat=self.remat)
                h, _ = stage(config, name=f"stage_{i}")(h, None)
        return self.logits(config.phi(h).mean((1, 2)), self.num_classes)


def even_stages(depth: int) -> tuple[int, ...]:
    """Branches of four stages, as equal as ``depth`` allows; the third gets the first extra one, as in ResNet-34."""
    size, extra = divmod(depth, STAGES)
    return tuple(size + (place < extra) for place in (3, 1, 0, 2))


class _TwoConvBlock(nn.Module):
    """One residual block of `ResNet`; carries the stream and records it in ``intermediates``.

    With ``down``, the first of a stage: half the resolution, twice the channels, and no record.
    """

    config: ActivationConfig
    down: bool = False

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        config, shortcut = self.config, None
        channels, stride = (2 * h.shape[-1], 2) if self.down else (h.shape[-1], 1)
        first = _NormedConv(config, channels, INTO, stride=stride, name="conv_1")
        second = _NormedConv(config, channels, OUT_OF, ends_branch=True, name="conv_2")
        if self.down:
            shortcut = _NormedConv(config, channels, window=1, stride=2, name="shortcut")
        h = config.residual(lambda x: second(config.phi(first(config.phi(x)))), shortcut)(h)
        if not self.down:
            self.sow("intermediates", "stream", h)
        return h, None
