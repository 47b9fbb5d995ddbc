"""The residual MLP of both papers (TP6 sec. 6.3 and 10.2, B24 Eq. 1)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup_flax.errors import InputError
from depthmup_flax.models.sizes import require_sizes
from depthmup_flax.nn.layers import Dense, Norm, Readout, ResidualBranch, mean_subtraction, nonlinearity, stacked
from depthmup_flax.rule.parametrization import PRESETS, Parametrization


class ResMLP(nn.Module):
    """``x^l = x^(l-1) + a r^-alpha MS(phi(W^l x^(l-1)))`` with ``x^0 = U xi`` and ``f = V^T x^L`` (TP6 6.3, 10.2).

    ``pre_nonlin`` gives B24's Eq. 1 instead: ``W phi(h)`` in the branch and a readout of ``phi(h^L)``. ``block_depth``
    k > 1 repeats the layer inside the branch, ``phi(W^lk ... phi(W^l1 x))`` (TP6 Eq. 6, B24 Eq. 120).

    Attributes:
      num_classes: number of outputs.
      width: n, the dimension of every hidden representation.
      depth: L, the number of residual branches.
      base_width, base_depth: the tuned proxy's; 0 means this model is its own base.
      parametrization: the rule.
      nonlinearity: relu, abs, linear, gelu, tanh or erf.
      pre_nonlin: the nonlinearity comes before the weights.
      mean_subtraction: MS on the branch's output.
      block_depth: layers in a branch.
      norm: ``none``, or ``layer`` for a LayerNorm in front of the branch's first weights (TP6 Fig. 12).
      zero_init_branch: the branch's last weights start at zero (B24 App. M).
      zero_init_readout: the readout starts at zero.
      use_bias: biases in every layer, the readout included.
      sigma: initial standard deviation of the weights in units of ``1/sqrt(fan_in)``.
      scan: compile one block and loop over it, or compile every block.
      remat: what the backward pass computes again to save memory: ``none``, ``dots`` (all but products with weights)
        or ``full``.
      dtype: of the computation inside layers.
      param_dtype: of parameters and of the residual stream.
    """

    input_kind: ClassVar[str] = "image"

    num_classes: int
    width: int = 128
    depth: int = 8
    base_width: int = 0
    base_depth: int = 0
    parametrization: Parametrization = PRESETS["depth_mup"]
    nonlinearity: str = "relu"
    pre_nonlin: bool = False
    mean_subtraction: bool = True
    block_depth: int = 1
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
        require_sizes(self, "num_classes", "width", "depth", "block_depth")
        nonlinearity(self.nonlinearity)
        if self.norm not in ("none", "layer"):
            raise InputError(f"model.norm is {self.norm!r}: ResMLP has 'none' and 'layer'.")
        if self.zero_init_branch and not self.pre_nonlin and self.nonlinearity in ("relu", "abs"):
            raise InputError(
                f"model.zero_init_branch with {self.nonlinearity!r} after the weights never trains, as its slope at "
                "0 is 0: set model.pre_nonlin=True or use linear, gelu, tanh or erf."
            )
        super().__post_init__()

    def base(self) -> ResMLP:
        """The same network at the base width (and this depth), whose shapes define the width ratios."""
        return self.clone(width=self.base_width or self.width)

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``[B, ...] -> [B, num_classes]``: inputs are flattened, outputs are logits in float32 (or wider)."""
        del train  # nothing here behaves differently in training
        x = x.reshape(x.shape[0], -1)
        phi = nonlinearity(self.nonlinearity)
        dense = functools.partial(
            Dense, sigma=self.sigma, use_bias=self.use_bias, dtype=self.dtype, param_dtype=self.param_dtype
        )
        depth_ratio = self.depth / (self.base_depth or self.depth)
        h = dense(self.width, ("fixed_in", "width_out"), name="stem")(x.astype(self.param_dtype))
        branch = functools.partial(
            _Branch,
            layers=[dense] * (self.block_depth - 1) + [functools.partial(dense, sigma=self._branch_end_sigma())],
            phi=phi,
            pre_nonlin=self.pre_nonlin,
            subtract_mean=self.mean_subtraction,
            norm=functools.partial(Norm, self.norm, dtype=self.dtype, param_dtype=self.param_dtype),
        )
        residual = functools.partial(ResidualBranch, parametrization=self.parametrization, depth_ratio=depth_ratio)
        blocks = stacked(_Block, self.depth, scan=self.scan, remat=self.remat)(branch, residual, name="blocks")
        h, _ = blocks(h.astype(self.param_dtype), None)
        if self.pre_nonlin:
            h = phi(h)
        return Readout(
            self.num_classes,
            self.parametrization,
            width_ratio=self.width / (self.base_width or self.width),
            sigma=0.0 if self.zero_init_readout else self.sigma,
            use_bias=self.use_bias,
            param_dtype=self.param_dtype,
            name="readout",
        )(h)

    def _branch_end_sigma(self) -> float:
        return 0.0 if self.zero_init_branch else self.sigma


class _Block(nn.Module):
    """One residual block; carries the stream and records it in ``intermediates``."""

    branch: Callable[..., nn.Module]
    residual: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        h = self.residual(self.branch(name="branch"))(h)
        self.sow("intermediates", "stream", h)
        return h, None


class _Branch(nn.Module):
    layers: Sequence[Callable[..., nn.Module]]
    phi: Callable[[jax.Array], jax.Array]
    pre_nonlin: bool
    subtract_mean: bool
    norm: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        z = self.norm(name="norm")(h, train=False)
        for i, make_layer in enumerate(self.layers):
            layer = make_layer(h.shape[-1], name=f"dense_{i}")
            z = layer(self.phi(z)) if self.pre_nonlin else self.phi(layer(z))
        return mean_subtraction(z) if self.subtract_mean else z
