"""Networks of one's own that can be wrong in one place, in Linen and NNX, and data for them and the NNX example."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from sklearn.datasets import load_digits

import depthmup_flax as dm
from examples import nnx_transformer

BASE_WIDTH, BASE_DEPTH = 16, 4


class MLP(nn.Module):
    """``[B, 64] -> [B, 10]``. ``a``, which ``rule`` has, multiplies all branches, a third of them, or the output.

    A factor that the code lacks would be carried in parameters by the audit; one more factor is not.
    """

    width: int
    depth: int
    rule: dm.Parametrization
    a_of: str = "branches"  # third, output
    dtype: str = "float32"  # of the parameters

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """The logits."""
        dense = lambda size, name: nn.Dense(size, use_bias=False, name=name, param_dtype=self.dtype)
        a, rule = self.rule.branch_multiplier, self.rule.replace(branch_multiplier=1.0)
        h = dense(self.width, "stem")(x)
        for i in range(self.depth):
            own = a if self.a_of == "branches" or (self.a_of == "third" and i % 3 == 0) else 1.0
            h = h + own * rule.residual_multiplier(self.depth / BASE_DEPTH) * dense(self.width, f"block_{i}")(
                nn.relu(h)
            )
        h = h * rule.readout_multiplier(self.width / BASE_WIDTH)
        return (a if self.a_of == "output" else 1.0) * dense(10, "readout")(h).astype(jnp.float32)


class Block(nnx_transformer.Block):
    """That of the example, with a ``multiplier`` of both branches."""

    multiplier = 1.0

    def __call__(self, x: Any, mask: Any) -> Any:
        """``[batch, length, width] -> [batch, length, width]``."""
        x = x + self.multiplier * self.attention(self.norm_1(x), mask=mask)
        return x + self.multiplier * self.down(nnx.gelu(self.up(self.norm_2(x))))


class Transformer(nnx_transformer.Transformer):
    """That of the example, with the rule's multipliers in its code; ``a_of`` and ``dtype`` as in `MLP`."""

    def __init__(
        self,
        width: int,
        depth: int,
        rngs: nnx.Rngs,
        rule: dm.Parametrization,
        a_of: str = "branches",
        dtype: str = "float32",
    ) -> None:
        super().__init__(width, depth, rngs)
        a, rule = rule.branch_multiplier, rule.replace(branch_multiplier=1.0)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(depth)])
        for i, block in enumerate(self.blocks):
            own = a if a_of == "branches" or (a_of == "third" and i % 3 == 0) else 1.0
            block.multiplier = own * rule.residual_multiplier(depth / nnx_transformer.BASE_DEPTH)
        self.multiplier = rule.readout_multiplier(width / nnx_transformer.BASE_WIDTH) * (a if a_of == "output" else 1.0)
        nnx.update(self, jax.tree.map(lambda x: x.astype(dtype), nnx.state(self, nnx.Param)))

    def __call__(self, tokens: Any) -> Any:
        """``[batch, length] -> [batch, length, VOCABULARY]``."""
        return self.multiplier * super().__call__(tokens).astype(jnp.float32)


def digits(noisy: float = 0.0) -> Any:
    """scikit-learn's digits ``[n, 64]``, normalized, with a part ``noisy`` of wrong training labels."""
    x, y = load_digits(return_X_y=True)
    x = ((x - x.mean()) / x.std()).astype(np.float32)
    generator = np.random.default_rng(0)
    order = generator.permutation(len(x))
    x, y = x[order], y[order].astype(np.int32)
    wrong = generator.random(len(y)) < noisy
    wrong[1500:] = False
    labels = np.where(wrong, (y + generator.integers(1, 10, len(y))) % 10, y).astype(np.int32)
    return (x[:1500], labels[:1500]), (x[1500:], labels[1500:])


def noisy_digits() -> Any:
    """`digits` with 20 % wrong labels."""
    return digits(0.2)


def counting(noisy: float = 0.0) -> Any:
    """Sequences of 17 numbers that count upwards, modulo 32: the first 16, and the next one of each."""
    generator = np.random.default_rng(0)
    tokens = ((generator.integers(0, 32, (2048, 1)) + np.arange(17)) % 32).astype(np.int32)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    wrong = generator.random(targets.shape) < noisy
    wrong[1920:] = False
    targets = np.where(wrong, generator.integers(0, 32, targets.shape), targets).astype(np.int32)
    return (inputs[:1920], targets[:1920]), (inputs[1920:], targets[1920:])


def noisy_counting() -> Any:
    """`counting` with 20 % of the training targets drawn anew."""
    return counting(0.2)
