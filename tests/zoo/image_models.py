"""Image models in the styles of public code: small, with the rule's edits as numbers (`Edits`)."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from .attention_parts import flax_attention
from .edits import Edits
from .language_models import HEADS, scanned

CLASSES = 4


class ResNetBlock(nn.Module):
    """Two convolutions, each with BatchNorm; a projection in the shortcut where shapes change."""

    features: int
    strides: int
    edits: Edits
    axis_name: str | None

    @nn.compact
    def __call__(self, x):
        e = self.edits
        norm = lambda **names: nn.BatchNorm(use_running_average=False, axis_name=self.axis_name, **names)
        conv = lambda size, strides, init, **names: nn.Conv(
            self.features, (size, size), (strides, strides), use_bias=False, kernel_init=init, **names
        )
        y = nn.relu(norm()(conv(3, self.strides, e.hidden)(x)))
        y = conv(3, 1, e.last)(y)
        y = norm()(e.branch * y) if e.before_norm else e.branch * norm()(y)
        if x.shape != y.shape:
            x = e.shortcut * norm(name="norm_proj")(conv(1, self.strides, e.hidden, name="conv_proj")(x))
        return nn.relu(x + y)


class BatchNormResNet(nn.Module):
    """flax's ImageNet ResNet: two stages, modules that Flax numbers, BatchNorm over a named axis of devices."""

    width: int
    depth: int
    edits: Edits
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x_BHWC):
        e, n = self.edits, self.width
        x = nn.Conv(n, (3, 3), use_bias=False, name="conv_init")(x_BHWC)
        x = nn.relu(nn.BatchNorm(use_running_average=False, axis_name=self.axis_name, name="bn_init")(x))
        for i in range(self.depth):
            second = i >= self.depth // 2
            x = ResNetBlock(n * (1 + second), 1 + (i == self.depth // 2), e, self.axis_name)(x)
        return nn.Dense(CLASSES)(e.readout * x.mean((1, 2)))


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, two dense layers and a learned scale."""

    edits: Edits

    @nn.compact
    def __call__(self, x):
        e, n = self.edits, x.shape[-1]
        y = nn.Conv(n, (3, 3), feature_group_count=n, name="dwconv")(x)
        y = nn.Dense(2 * n, kernel_init=e.hidden, name="pwconv1")(nn.LayerNorm(name="norm")(y))
        y = nn.Dense(n, kernel_init=e.last, name="pwconv2")(nn.gelu(y))
        return x + e.branch * self.param("gamma", nn.initializers.constant(0.5), (n,)) * y


class ConvNeXt(nn.Module):
    """Two stages with a norm and a strided convolution between them."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, x_BHWC):
        e, n = self.edits, self.width
        x = nn.LayerNorm(name="stem_norm")(nn.Conv(n, (2, 2), strides=(2, 2), name="stem")(x_BHWC))
        for i in range(self.depth):
            if i == self.depth // 2:
                x = nn.LayerNorm(name="stages_norm")(x)
                x = e.shortcut * nn.Conv(2 * n, (2, 2), strides=(2, 2), kernel_init=e.hidden, name="stages_down")(x)
            x = ConvNeXtBlock(e, name=f"stages_{i}")(x)
        x = nn.LayerNorm(name="head_norm")(x.mean((1, 2)))
        return e.readout * nn.Dense(CLASSES, use_bias=False, name="head")(x)


class SqueezeExcite(nn.Module):
    """Gates every channel by what a small network, of fixed size, makes of the mean over the image."""

    edits: Edits

    @nn.compact
    def __call__(self, x):
        y = nn.silu(nn.Dense(4, kernel_init=self.edits.narrow, name="reduce")(x.mean((1, 2))))
        return x * nn.sigmoid(nn.Dense(x.shape[-1], name="expand")(y))[:, None, None]


class SEBlock(nn.Module):
    """A norm, a convolution and the gate, for ``nn.scan``."""

    edits: Edits

    @nn.compact
    def __call__(self, x, _):
        y = nn.relu(nn.LayerNorm(name="norm")(x))
        y = nn.Conv(x.shape[-1], (3, 3), use_bias=False, kernel_init=self.edits.last, name="conv")(y)
        return x + self.edits.branch * SqueezeExcite(self.edits, name="se")(y), None


class SENet(nn.Module):
    """Convolutions whose channels are gated."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, x_BHWC):
        x = nn.Conv(self.width, (3, 3), strides=(2, 2), name="stem")(x_BHWC)
        x, _ = scanned(SEBlock, self.depth)(self.edits, name="trunk")(x, None)
        return self.edits.readout * nn.Dense(CLASSES, use_bias=False, name="head")(x.mean((1, 2)))


class MlpBlock(nn.Module):
    """A feed-forward."""

    edits: Edits

    @nn.compact
    def __call__(self, x):
        y = nn.gelu(nn.Dense(2 * x.shape[-1], kernel_init=self.edits.hidden)(x))
        return nn.Dense(x.shape[-1], kernel_init=self.edits.last)(y)


class EncoderBlock(nn.Module):
    """Pre-norm attention and feed-forward, for ``nn.scan``."""

    edits: Edits

    @nn.compact
    def __call__(self, x, _):
        y = nn.LayerNorm(name="norm_attention")(x)
        x = x + self.edits.branch * flax_attention(x.shape[-1], HEADS, self.edits, "attention")(y)
        y = MlpBlock(self.edits, name="mlp")(nn.LayerNorm(name="norm_mlp")(x))
        return x + self.edits.last_branch * y, None


class MapHead(nn.Module):
    """Attention from one learned probe to all tokens, and a feed-forward around it, in every depth once."""

    edits: Edits

    @nn.compact
    def __call__(self, x_BTD):
        batch, _, n = x_BTD.shape
        probe = jnp.tile(self.param("probe", self.edits.table(), (1, 1, n)), (batch, 1, 1))
        x = flax_attention(n, HEADS, self.edits, "attention")(probe, x_BTD)
        return (x + MlpBlock(self.edits, name="mlp")(nn.LayerNorm(name="norm")(x)))[:, 0]


class MapViT(nn.Module):
    """big_vision's ViT: scanned blocks, a head that attends, logits and a dictionary of features as outputs."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, x_BHWC):
        e, n = self.edits, self.width
        x = nn.Conv(n, (4, 4), strides=(4, 4), padding="VALID", name="embedding")(x_BHWC)
        x = x.reshape(x.shape[0], -1, n)
        x = x + self.param("pos_embedding", e.table(0.5), (1, *x.shape[1:]))
        x, _ = scanned(EncoderBlock, self.depth)(e, name="encoderblock")(x, None)
        out = {"encoded": nn.LayerNorm(name="encoder_norm")(x)}
        out["head_input"] = MapHead(e, name="map_head")(out["encoded"])
        logits = nn.Dense(CLASSES, name="head")(e.readout * out["head_input"])
        return logits, out


class MixerBlock(nn.Module):
    """Feed-forwards over tokens, whose size is fixed, and over channels."""

    edits: Edits

    @nn.compact
    def __call__(self, x_BTD, _):
        e, tokens = self.edits, x_BTD.shape[1]
        y = nn.LayerNorm(name="norm_tokens")(x_BTD).swapaxes(1, 2)
        y = nn.Dense(tokens, name="tokens_down")(nn.gelu(nn.Dense(8, name="tokens_up")(y)))
        x_BTD = x_BTD + e.branch * y.swapaxes(1, 2)
        return x_BTD + e.last_branch * MlpBlock(e, name="channels")(nn.LayerNorm(name="norm_channels")(x_BTD)), None


class Mixer(nn.Module):
    """MLP-Mixer under ``nn.scan``."""

    width: int
    depth: int
    edits: Edits

    @nn.compact
    def __call__(self, x_BHWC):
        x = nn.Conv(self.width, (4, 4), strides=(4, 4), padding="VALID", name="stem")(x_BHWC)
        x = x.reshape(x.shape[0], -1, self.width)
        x, _ = scanned(MixerBlock, self.depth)(self.edits, name="blocks")(x, None)
        x = nn.LayerNorm(name="norm")(x).mean(1)
        return self.edits.readout * nn.Dense(CLASSES, use_bias=False, name="head")(x)
