"""The places of a model that the rule touches, as numbers that a mistake can replace."""

from __future__ import annotations

import dataclasses

from flax.linen import initializers

import depthmup_flax as dm

BASE_WIDTH, BASE_DEPTH = 16, 2
RULE = dm.get_parametrization("depth_mup", branch_multiplier=0.5)
# For one block that is used at every depth: the branches add up coherently, so each is divided by their number.
LOOPED_RULE = dm.get_parametrization("ode", branch_multiplier=0.5)


@dataclasses.dataclass(frozen=True)
class Edits:
    """What stands in the forward pass and the initializers of a model of one size; all are constants at the base."""

    m: float  # width / base width
    r: float  # depth / base depth
    branch: float  # on the output of a block's first branch
    last_branch: float  # on the output of its last branch
    readout: float  # on the readout's product
    embedding: float = 1.0  # on embeddings
    shortcut: float = 1.0  # on the output of a shortcut's projection
    head_power: float = -1.0  # products of queries and keys are multiplied by head_dim^head_power
    before_norm: bool = False  # the branch is multiplied before the norm that ends it
    hidden_std: float = 1.0  # hidden weights start with hidden_std / sqrt(fan_in)
    last_std: float = 1.0  # a branch's last weight starts with last_std / sqrt(fan_in)
    input_std: float = 1.0  # embeddings and stems start with input_std / sqrt(the base's fan_in)
    narrow_std: float = 0.0  # what maps the width to a fixed number of features in a branch: narrow_std / sqrt(fan_in)

    @classmethod
    def right(cls, width: int, depth: int, rule: dm.Parametrization) -> Edits:
        """The rule's."""
        m, r = width / BASE_WIDTH, depth / BASE_DEPTH
        branch = rule.residual_multiplier(r)
        return cls(m, r, branch, branch, rule.readout_multiplier(m))

    def attention(self, head_dim: int, base_head_dim: int) -> float:
        """The factor on products of queries and keys: ``sqrt(d_base) / d`` if right."""
        return base_head_dim**-0.5 * (head_dim / base_head_dim) ** self.head_power

    @property
    def hidden(self) -> initializers.Initializer:
        """Of weights inside the model."""
        return initializers.variance_scaling(self.hidden_std**2, "fan_in", "normal")

    @property
    def last(self) -> initializers.Initializer:
        """Of the last weight of a branch."""
        return initializers.variance_scaling((self.hidden_std * self.last_std) ** 2, "fan_in", "normal")

    @property
    def narrow(self) -> initializers.Initializer:
        """Of weights in a branch that read the width and write a fixed number of features: a router, an adapter."""
        std = self.narrow_std
        return initializers.variance_scaling(std**2, "fan_in", "normal") if std else initializers.zeros

    def table(self, std: float = 1.0) -> initializers.Initializer:
        """Of embeddings and learned tokens."""
        return initializers.normal(std * self.input_std)
