"""A residual network whose layers and operations a test chooses, right and with three mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from depthmup_flax import audit, get_parametrization

RULE = get_parametrization("depth_mup")
WIDTH, DEPTH = 16, 2  # of the base model


def _dense(features: int, name: str) -> Any:
    return nn.Dense(features, name=name)


def _same(y: Any, *_: Any) -> Any:
    return y


class Net(nn.Module):
    """Branches of two matrices; ``edit`` names a mistake."""

    width: int
    depth: int
    edit: str = ""
    dense: Callable[[int, str], Any] = _dense  # (features, name) -> layer
    middle: Callable[..., Any] = _same  # (activations, module, number of the block) -> activations
    end: Callable[..., Any] = _same  # of a branch

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        h = self.dense(self.width, "stem")(x) * (self.width**0.5 if self.edit == "root_embedding" else 1)
        for i in range(self.depth):
            y = self.dense(2 * self.width, f"up_{i}")(nn.LayerNorm(name=f"norm_{i}")(h))
            if self.edit == "root_inside":
                y = y / self.width**0.5
            y = self.dense(self.width, f"down_{i}")(nn.relu(self.middle(y, self, i)))
            h = h + self.multiplier * self.end(y, self, i)
        h = h * (1 if self.edit == "no_readout" else RULE.readout_multiplier(self.width / WIDTH))
        return self.dense(8, "head")(h)

    @property
    def multiplier(self) -> float:
        """Of the branches."""
        return 1.0 if self.edit == "no_multiplier" else float(RULE.residual_multiplier(self.depth / DEPTH))


def audited(edit: str = "", model: Any = Net, known: Any = None, **parts: Any) -> Any:
    """The audit of a network, twice as wide and deep as its base."""
    large, base = model(2 * WIDTH, 2 * DEPTH, edit, **parts), model(WIDTH, DEPTH, edit, **parts)
    return audit(large, base, jnp.ones((4, 8)), known=known, carry=False)


def said(result: Any) -> str:
    """The first finding of an audit, or its verdict."""
    return result.findings[0].name if result.findings else result.verdict
