"""The residual MLP of both papers (TP6 sec. 6.3 and 10.2, B24 Eq. 1)."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax

from depthmup_flax.devices.sharding import stream
from depthmup_flax.models.base import Classifier, ResidualNetwork
from depthmup_flax.nn.blocks import ActivationConfig, stacked
from depthmup_flax.nn.layers import NONLINEARITIES, STEM, mean_subtraction
from depthmup_flax.util.errors import InputError


@dataclasses.dataclass(frozen=True)
class _Config(ActivationConfig):
    """`ResMLP`'s fields that its blocks read."""

    pre_nonlin: bool = False
    mean_subtraction: bool = True
    block_depth: int = 1


class ResMLP(ResidualNetwork, Classifier):
    """``x^l = x^(l-1) + a r^-alpha MS(phi(W^l x^(l-1)))`` with ``x^0 = U xi`` and ``f = V^T x^L`` (TP6 6.3, 10.2).

    ``pre_nonlin`` gives B24's Eq. 1 instead: ``W phi(h)`` in the branch and a readout of ``phi(h^L)``. ``block_depth``
    k > 1 repeats the layer inside the branch, ``phi(W^lk ... phi(W^l1 x))`` (TP6 Eq. 6, B24 Eq. 120). Other fields:
    `ResidualNetwork`.

    Attributes:
      norm: ``none``, or ``layer``: a LayerNorm before the branch's first weights (TP6 Fig. 12).
    """

    choices = ResidualNetwork.choices | {"nonlinearity": NONLINEARITIES}

    width: int = 128
    depth: int = 8
    nonlinearity: str = "relu"  # relu, abs, linear, gelu, tanh or erf
    pre_nonlin: bool = False  # the nonlinearity comes before the weights
    mean_subtraction: bool = True  # MS, subtract the mean over features from the branch's output
    # Layers in a branch; above 1 the default preset is not optimal in theory (measured in
    # reproduction/pages/which_exponent.md)
    block_depth: int = 1
    zero_init_branch: bool = False  # the branch's last weights start at zero (B24 App. M)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.zero_init_branch and not self.pre_nonlin and self.nonlinearity in ("relu", "abs"):
            raise InputError(
                f"model.zero_init_branch is True: with {self.nonlinearity!r} after the weights, whose slope at 0 is 0, "
                "the branch never trains. Set model.pre_nonlin=True, or use linear, gelu, tanh or erf."
            )

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``[B, ...] -> [B, num_classes]``: inputs are flattened, outputs are logits, at least float32."""
        config = self.config(_Config, train=train)
        stem = config.dense(self.width, STEM, name="stem")
        h = stem(x.reshape(x.shape[0], -1).astype(self.param_dtype)).astype(self.param_dtype)
        h, _ = stacked(_Block, self.depth, scan=self.scan, remat=self.remat)(config, name="blocks")(stream(h), None)
        return self.logits(config.phi(h) if self.pre_nonlin else h, self.num_classes)


class _Block(nn.Module):
    """One residual block; carries the stream and records it in ``intermediates``."""

    config: _Config

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        h = self.config.residual(_Branch(self.config, name="branch"))(h)
        self.sow("intermediates", "stream", h)
        return h, None


class _Branch(nn.Module):
    """``MS(phi(W x))``, with `_Config`'s variations."""

    config: _Config

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        config, phi = self.config, self.config.phi
        z = config.normalization("norm")(h)
        for i in range(config.block_depth):
            sigma = 0.0 if config.zero_init_branch and i == config.block_depth - 1 else config.sigma
            axes = ("inner_in" if i else "width_in", "inner_out" if i < config.block_depth - 1 else "width_out")
            dense = config.dense(h.shape[-1], axes, sigma=sigma, name=f"dense_{i}")
            z = dense(phi(z)) if config.pre_nonlin else phi(dense(z))
        return mean_subtraction(z) if config.mean_subtraction else z
