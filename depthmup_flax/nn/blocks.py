"""Stacks of residual blocks, and the configuration of their layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.devices.sharding import AxisNames, target_platform
from depthmup_flax.nn.layers import HIDDEN, NONLINEARITIES, Dense, Norm, ResidualBranch
from depthmup_flax.rule.parametrization import PRESETS, Parametrization
from depthmup_flax.util.types import Dtype

Layer = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class LayerConfig:
    """The fields that the layers of a network share; its methods make layers inside a module's ``__call__``.

    ``sigma`` is the initial standard deviation of weights in units of ``1/sqrt(fan_in)``; layers compute in ``dtype``,
    parameters and the residual stream have ``param_dtype``; ``train`` is for BatchNorm and dropout.
    """

    rule: Parametrization = PRESETS["depth_mup"]
    depth_ratio: float = 1.0
    norm: str = "none"
    sigma: float = 1.0
    use_bias: bool = False
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    train: bool = False

    def dense(self, features: int, axes: AxisNames = HIDDEN, *, name: str, sigma: float | None = None) -> Dense:
        """A `Dense` layer, with the network's ``sigma`` by default."""
        sigma = self.sigma if sigma is None else sigma
        return Dense(features, axes, sigma, self.use_bias, self.dtype, self.param_dtype, name=name)

    def normalization(self, name: str) -> Layer:
        """``x -> Norm(x)``, in training or evaluation as configured."""
        norm = Norm(self.norm, self.dtype, self.param_dtype, name=name)
        return lambda x: norm(x, train=self.train)

    def residual(self, branch: Layer, shortcut: Layer | None = None) -> ResidualBranch:
        """The residual connection around ``branch``."""
        return ResidualBranch(branch, self.rule, self.depth_ratio, shortcut)


@dataclasses.dataclass(frozen=True)
class ActivationConfig(LayerConfig):
    """Residual blocks with a named nonlinearity, whose last weights may start at zero."""

    nonlinearity: str = "relu"
    zero_init_branch: bool = False

    def phi(self, x: jax.Array) -> jax.Array:
        """The nonlinearity."""
        return NONLINEARITIES[self.nonlinearity](x)


@dataclasses.dataclass(frozen=True)
class TransformerConfig(LayerConfig):
    """A stack of attention and feed-forward branches, with fields of `depthmup_flax.models.base.TransformerNetwork`."""

    norm: str = "layer"
    depth: int = 4
    num_heads: int = 4
    num_kv_heads: int = 0  # heads of keys and values, a divisor of ``num_heads``; 0: as many as ``num_heads``
    base_head_dim: int = 0  # the base model's head dimension; 0: this model's
    causal: bool = False  # a position attends to itself and to earlier ones
    # Sides of the grid of tokens whose queries and keys are rotated by their positions; tokens before the grid are not.
    # Empty: no rotation. See `depthmup_flax.nn.attention.rotary_angles`.
    rotary: tuple[int, ...] = ()
    qk_norm: bool = False
    mlp: str = "gelu"
    mlp_ratio: int = 4
    mlp_features: int = 0  # hidden features of this model; 0: ``mlp_ratio`` times the width
    dropout: float = 0.0
    stream_dtype: Dtype = ""
    attention: str = "auto"
    scan: int | str = "auto"
    remat: str = "none"

    def hidden(self, width: int) -> int:
        """Hidden features of a feed-forward network at this width."""
        return self.mlp_features or self.mlp_ratio * width


ATTENTION = "attention"  # the `checkpoint_name` of attention's outputs

_policies = jax.checkpoint_policies
REMAT: dict[str, Callable[..., Any] | None] = {
    "none": None,  # saves what the backward pass needs
    "dots": _policies.save_from_both_policies(  # saves products with weights, and attention's outputs
        _policies.dots_with_no_batch_dims_saveable, _policies.save_only_these_names(ATTENTION)
    ),
    "full": _policies.nothing_saveable,  # saves the stream between blocks
}


# Platform -> the most layers that are compiled one after another, and how many a loop over more of them takes at a
# time. A loop copies what it stacks: by the compilers, a step of ViT-S takes 1.7 times as long on a GPU, and 1.34 to
# 1.37 times on a TPU. There 12 layers take 196 s of a processor to compile, a loop 44 s, and one over pairs is slower
# than one over layers. On a CPU two blocks of a residual network compile and run no slower than their loop.
UNROLLED = {"gpu": (64, 16), "tpu": (12, 1)}


def layers_at_a_time(scan: int | str, length: int) -> int:
    """How many of ``length`` layers are compiled one after another; the program loops over such groups."""
    if scan == "auto":
        most, group = UNROLLED.get(target_platform() or "", (2, 1))
        return length if length <= most else group
    return int(scan) or length


def stacked(block: type[nn.Module], length: int, *, scan: int | str, remat: str = "none") -> Callable[..., nn.Module]:
    """``length`` copies of ``block`` in sequence, with parameters stacked along a leading ``layers`` axis.

    Parameters, initial values, outputs and gradients do not depend on ``scan``, so checkpoints fit both values.

    Args:
      block: maps ``(carry, None) -> (carry, None)``.
      length: number of copies.
      scan: compile the block once; otherwise ``length`` times, which XLA may optimize further; a number: so many times.
        ``auto``: see `layers_at_a_time`.
      remat: a key of `REMAT`: what the forward pass saves; the rest is recomputed. ``auto``: ``dots``, but ``none``
        without a loop. Changes memory and time only.
    """
    unroll = layers_at_a_time(scan, length)
    if remat == "auto":
        remat = "none" if unroll == length else "dots"
    if (policy := REMAT[remat]) is not None:
        # In a loop's body the compiler cannot undo remat, so it needs no barrier.
        block = nn.remat(block, policy=policy, prevent_cse=unroll > 1)
    return nn.scan(
        block,
        variable_axes={"params": 0, "batch_stats": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        length=length,
        unroll=unroll,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
