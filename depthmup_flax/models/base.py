"""The fields, checks and readout of all models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any, ClassVar, Self, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.devices.sharding import gathered
from depthmup_flax.nn.attention import ATTENTIONS
from depthmup_flax.nn.blocks import REMAT, LayerConfig, TransformerConfig
from depthmup_flax.nn.layers import STEM, Readout, normal
from depthmup_flax.nn.transformer import MLPS, Transformer
from depthmup_flax.rule.parametrization import PRESETS, Parametrization
from depthmup_flax.util.errors import InputError, did_you_mean, require_number
from depthmup_flax.util.types import Dtype

_Config = TypeVar("_Config", bound=LayerConfig)


class Classifier(nn.Module):
    """A model of images; the second base of a class, so that the number of outputs is the first argument."""

    input_kind: ClassVar[str] = "image"

    num_classes: int


class LanguageModel(nn.Module):
    """A model of sequences of tokens; see `Classifier`."""

    input_kind: ClassVar[str] = "tokens"

    vocab_size: int


def require(valid: bool, sentence: str) -> None:
    """Raises `InputError` with ``sentence``, which follows "model.", unless ``valid``."""
    if not valid:
        raise InputError(f"model.{sentence}")


class ResidualNetwork(nn.Module):
    """The base of every model.

    Attributes:
      base_width, base_depth: width and depth of the base model, the tuned proxy; 0: this model's own.
    """

    # The allowed values of fields that are names.
    choices: ClassVar[dict[str, Collection[str]]] = {"norm": ("none", "layer"), "remat": REMAT}

    width: int  # n, the dimension of hidden representations
    depth: int  # L, the number of residual blocks
    base_width: int = 0
    base_depth: int = 0
    rule: Parametrization = PRESETS["depth_mup"]
    norm: str = "none"  # kind of normalization inside the residual branches; ``none`` for none
    zero_init_readout: bool = False  # the readout starts at zero
    use_bias: bool = False  # biases in every layer, the readout included
    sigma: float = 1.0  # initial standard deviation of the weights in units of ``1/sqrt(fan_in)``
    # Compile one block, or so many, and loop over it; otherwise every block. ``auto``: by their number and the platform
    scan: int | str = "auto"
    # What the backward pass recomputes to save memory: ``none``; ``dots``, all but products with weights and
    # attention's outputs; ``full``, all but the stream between blocks; ``auto``, of transformers: ``dots`` where blocks
    # are a loop, else ``none``
    remat: str = "none"
    # Of the computation inside layers; ``param_dtype`` is that of parameters and of the residual stream, which
    # transformers may change by ``stream_dtype``
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    def __post_init__(self) -> None:
        require(isinstance(self.rule, Parametrization), f"rule is {self.rule!r}: use get_parametrization(name).")
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), 0 if field.default == 0 else 1
            if field.type == "int":
                require_number(f"model.{field.name}", value, least=least, whole=True)
            elif field.type == "bool":
                require(isinstance(value, (bool, np.bool_)), f"{field.name} is {value!r}: use True or False.")
            elif "Dtype" in str(field.type) and value not in (None, ""):
                try:
                    # Unless float64 is enabled, JAX would silently compute in float32.
                    widths = (16, 32, 64) if jax.config.jax_enable_x64 else (16, 32)  # type: ignore[attr-defined]
                    usable = jnp.issubdtype(jnp.dtype(value), jnp.floating) and jnp.finfo(value).bits in widths
                except TypeError:
                    usable = False
                require(usable, f"{field.name} is {value!r}: use 'float32', 'bfloat16' or 'float16'.")
        known = self.scan == "auto" or (isinstance(self.scan, (bool, int, np.bool_)) and self.scan >= 0)
        require(known, f"scan is {self.scan!r}: use 'auto', True, False or a number of blocks.")
        for name, names in self.choices.items():
            value = getattr(self, name)
            require(value in names, f"{name} is {value!r}: {did_you_mean(value, names)}")
        super().__post_init__()

    def resized(self, width: int, depth: int) -> Self:
        """The same network at another size, with the same base."""
        changes: dict[str, Any] = {"width": width, "depth": depth}
        changes["base_width"] = self.base_width or self.width
        changes["base_depth"] = self.base_depth or self.depth
        if stages := getattr(self, "stage_sizes", ()):  # of a ResNet
            changes["stage_sizes"] = stages_of_depth(tuple(stages), depth)
        return self.clone(**changes)

    def base(self) -> Self:
        """The base model: the same network of the base width and depth."""
        return self.resized(self.base_width or self.width, self.base_depth or self.depth)

    @property
    def width_ratio(self) -> float:
        """``m``, the width over the base model's."""
        return self.width / (self.base_width or self.width)

    @property
    def depth_ratio(self) -> float:
        """``r``, the number of residual branches over the base model's."""
        return self.depth / (self.base_depth or self.depth)

    @property
    def multipliers(self) -> dict[str, float]:
        """The constants of the forward pass that are not parameters, for a reader of the parameters alone.

        ``branch`` multiplies the output of every residual branch, ``readout`` the readout's product, and ``output`` the
        logits, bias included; ``attention``, of transformers, the products of queries and keys.
        """
        rule, m = self.rule, self.width_ratio
        return {
            "branch": float(rule.residual_multiplier(self.depth_ratio)),
            "readout": float(rule.readout_multiplier(m)),
            "output": 1 / float(rule.output_divisor(m)),
        }

    def config(self, kind: type[_Config], **fields: Any) -> _Config:
        """A configuration of blocks: ``fields``, and this model's values of the others."""
        names = {field.name for field in dataclasses.fields(kind)} - fields.keys()
        return kind(**{name: getattr(self, name) for name in names}, **fields)

    def logits(self, h: jax.Array, features: int, axis: str = "fixed_out") -> jax.Array:
        """``[..., n] -> [..., features]``: logits, at least float32."""
        sigma = 0.0 if self.zero_init_readout else self.sigma
        rule, m = self.rule, self.width_ratio
        return Readout(features, rule, m, sigma, self.use_bias, self.param_dtype, axis, self.dtype, name="readout")(h)


class TransformerNetwork(ResidualNetwork):
    """The base of `ViT` and `GPT`.

    The defaults are the papers' blocks. Recent language models (Llama, Qwen) use ``positions="rotary"``,
    ``norm="rms"``, ``mlp="swiglu"``, ``qk_norm=True`` and ``num_kv_heads`` below ``num_heads``; see
    `depthmup_flax.nn.attention.SelfAttention` and `depthmup_flax.nn.transformer` for their rules. Branches have two
    matrices in sequence, for which the default preset is not optimal in theory (TP6 section 9):
    reproduction/pages/which_exponent.md says what was measured.

    Attributes:
      width: n, the model dimension.
      depth: transformer layers (TP6's L in 10.3); each has two residual branches, attention and feed-forward.
    """

    choices = ResidualNetwork.choices | {
        "norm": ("none", "layer", "rms"),
        "positions": ("learned", "rotary"),
        "mlp": MLPS,
        "attention": ATTENTIONS,
        "remat": ("auto", *REMAT),
    }
    rotary_divisor: ClassVar[int]  # of a head's dimension: two for each side of the grid

    num_heads: int = 4  # number of heads at every width; their dimension grows
    # If above 0, replaces ``num_heads``: the dimension of a head at every width; their number grows. Both transfer;
    # which is better at a given cost is an open question.
    head_dim: int = 0
    mlp_ratio: int = 4  # hidden features of the feed-forward branch in units of ``width``
    norm: str = "layer"  # ``layer`` or ``rms`` (at the beginning of each branch, and before the readout) or ``none``
    remat: str = "auto"
    positions: str = "learned"  # ``learned``, added to the tokens; or ``rotary``: queries and keys are rotated
    dropout: float = 0.0  # of branch outputs in training
    # Of the residual stream between blocks; "": ``param_dtype``. ``bfloat16`` halves its bytes and rounds it to 8 bits
    # after each branch; the result of the last norm and the input of the readout have ``param_dtype``.
    stream_dtype: Dtype = ""
    # ``xla`` is ``jax.nn.dot_product_attention``. ``auto`` is cuDNN's in programs for GPUs in 16 bits with heads of up
    # to 128 features, and our kernel in ``depthmup train`` for TPUs in bfloat16; float32 and larger heads have no fused
    # form and stay with ``xla``. Both were compiled for their devices; ours was tested by interpretation, and never ran
    # on a TPU.
    attention: str = "auto"
    # If above 0, heads of keys and values at the base width, a divisor of the number of heads there. A head of keys
    # serves equally many heads of queries at every width.
    num_kv_heads: int = 0
    # RMS norm of the queries and of the keys of each head, with scales that heads share. Queries then start at random
    # instead of at zero.
    qk_norm: bool = False
    mlp: str = "gelu"  # the feed-forward: ``gelu``, or ``swiglu``, which has a third matrix of the same size
    # If above 0, replaces ``mlp_ratio``: hidden features at the base width, which grow as the width. A ``swiglu`` with
    # ``8/3`` of the base width has as many parameters as a ``gelu`` with ``mlp_ratio=4``.
    mlp_features: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        base, name = self._base_width, "head_dim" if self.head_dim else "num_heads"
        for field, width in (("width", self.width), ("base_width", base)):
            divisor = getattr(self, name)
            require(width % divisor == 0, f"{field} is {width}: use a multiple of model.{name}, {divisor}.")
            dim, multiple = width // self._heads(width), self.rotary_divisor
            need = f"positions is 'rotary': the features of a head are {dim} at width {width}"
            require(self.positions != "rotary" or dim % multiple == 0, f"{need}, not a multiple of {multiple}.")
        require(0 <= self.dropout < 1, f"dropout is {self.dropout!r}: use a probability below 1.")
        if self.num_kv_heads:
            heads, group = self._heads(base), self._heads(base) // self.num_kv_heads
            divides = heads % self.num_kv_heads == 0 and self._heads(self.width) % group == 0
            need = f"num_kv_heads is {self.num_kv_heads}: use a divisor of the {heads} heads of width {base}"
            require(divides, f"{need}, for equal groups of {group} heads at width {self.width}, too.")
        whole, features = self.mlp_features * self.width % base == 0, f"mlp_features is {self.mlp_features}"
        require(whole, f"{features} at the base width {base}: at width {self.width} it must be a whole number, too.")

    @property
    def _base_width(self) -> int:
        return self.base_width or self.width

    def _heads(self, width: int) -> int:
        return width // self.head_dim if self.head_dim else self.num_heads

    @property
    def multipliers(self) -> dict[str, float]:
        """Those of `ResidualNetwork`, and ``attention``."""
        head_dims = (width // self._heads(width) for width in (self.width, self._base_width))
        return {**super().multipliers, "attention": float(self.rule.attention_scale(*head_dims))}

    @property
    def embedding_std(self) -> float:
        """Of learned positions and class tokens: B24's ``1/sqrt(N)``, at the base width, so it does not shrink."""
        return self.sigma / math.sqrt(self._base_width)

    def position_table(self, count: int) -> jax.Array:
        """``[count, width]``: learned positions, not decayed; as many as the model is initialized with."""
        stored: Any = self.get_variable("params", "positions")
        rows = count if stored is None else nn.unbox(stored).shape[0]
        if count > rows:
            raise InputError(f"the sequence has {count} tokens: use at most {rows}, the length at initialization.")
        init = normal(self.embedding_std, STEM)
        return gathered(self.param("positions", init, (rows, self.width), self.param_dtype), STEM)[:count]

    def transform(self, h: jax.Array, *, grid: tuple[int, ...], train: bool, causal: bool) -> jax.Array:
        """``[B, T, n] -> [B, T, n]``: attention, feed-forward and the last norm.

        ``grid``: sides of the grid that the last tokens form; see `depthmup_flax.nn.attention.rotated`.
        """
        heads, base_heads = self._heads(self.width), self._heads(self._base_width)
        config = self.config(
            TransformerConfig,
            num_heads=heads,
            num_kv_heads=self.num_kv_heads * heads // base_heads,
            base_head_dim=self._base_width // base_heads,
            rotary=grid if self.positions == "rotary" else (),
            mlp_features=self.mlp_features * self.width // self._base_width,
            causal=causal,
            train=train,
        )
        return Transformer(config, name="transformer")(h)


def stages_of_depth(stages: tuple[int, ...], depth: int) -> tuple[int, ...]:
    """As many stages, with branches in the same proportions as far as whole numbers of at least 1 allow."""
    if not stages or sum(stages) == depth:
        return stages
    wanted = [depth * size / sum(stages) for size in stages]
    sizes = [max(1, int(size)) for size in wanted]
    lacking = lambda i: wanted[i] - sizes[i]
    while sum(sizes) < depth:
        sizes[max(range(len(sizes)), key=lacking)] += 1
    while sum(sizes) > depth and max(sizes) > 1:
        sizes[min((i for i, size in enumerate(sizes) if size > 1), key=lacking)] -= 1
    return tuple(sizes)
