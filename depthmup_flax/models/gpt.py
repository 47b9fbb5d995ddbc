"""The decoder-only language model (TP6 sec. 10.3)."""

from __future__ import annotations

import math

import flax.linen as nn
import jax

from depthmup_flax.devices.sharding import stream
from depthmup_flax.models.base import LanguageModel, TransformerNetwork
from depthmup_flax.nn.attention import sincos_positions
from depthmup_flax.nn.layers import LogitFactors
from depthmup_flax.nn.transformer import Embed
from depthmup_flax.util.errors import InputError


class GPT(TransformerNetwork, LanguageModel):
    """Token embeddings and positions, causal transformer blocks as in `ViT`, a readout over the vocabulary.

    Branches have two matrices in sequence, for which the default preset is not optimal in theory (TP6 section 9):
    `depthmup_flax.rule.phase_diagram.WHICH_EXPONENT` says what was measured. Other fields: `TransformerNetwork`.

    Attributes:
      positions: ``learned``, for at most as many tokens as at initialization; ``sincos`` or ``rotary``, for any number.
      tied: the readout's weights are the token embedding. Excludes ``zero_init_readout``.
    """

    position_divisor = 2

    width: int = 128
    depth: int = 4
    tied: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tied and self.zero_init_readout:
            raise InputError(
                "model.zero_init_readout is True: a tied readout is the token embedding. Set one to False."
            )

    @property
    def multipliers(self) -> dict[str, float]:
        """Those of `TransformerNetwork`; a tied readout's has the factor of `Embed.attend`."""
        found = super().multipliers
        if self.tied:
            found["readout"] /= math.sqrt(self.rule.readout_fan_in(self.width, self.width_ratio))
        return found

    @nn.compact
    def __call__(self, tokens: jax.Array, *, train: bool = False, factors: bool = False) -> jax.Array | LogitFactors:
        """``[B, T]`` of integers ``-> [B, T, vocab_size]``: logits, at least float32, or their `LogitFactors`."""
        length, rule, m = tokens.shape[1], self.rule, self.width_ratio
        embed = Embed(self.vocab_size, self.width, rule, m, self.sigma, self.param_dtype, self.dtype, name="stem")
        h = embed(tokens)
        if self.positions != "rotary":
            learned = self.positions == "learned"
            h = h + (self.position_table(length) if learned else sincos_positions(length, self.width))
        h = self.transform(stream(h), grid=(length,), train=train, causal=True)
        if self.tied:
            return embed.attend(h, factors=factors)
        return self.logits(h, self.vocab_size, "vocab_out", factors=factors)
