"""Constants of a forward pass, as powers of the ratios that the rule scales by.

What the code of a network lacks does not depend on the rule: a branch lacks ``a r^-alpha / n``, a readout ``1/m``, the
scores of attention ``(d / d_base)^-1/2``. So one `Factor` serves every parametrization, and its numbers may be traced.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any, Protocol, TypeAlias

import numpy as np

from depthmup_flax.util.types import Scalar


class Exponents(Protocol):
    """The numbers of a `Parametrization` that a factor is raised to; any may be traced."""

    @property
    def width_power(self) -> Scalar: ...  # noqa: D102
    @property
    def alpha(self) -> Scalar: ...  # noqa: D102
    @property
    def gamma0_width_exponent(self) -> Scalar: ...  # noqa: D102
    @property
    def branch_multiplier(self) -> Scalar: ...  # noqa: D102


# A number; or those of equal blocks of a parameter, in nested tuples with as many axes: queries, keys and values of a
# fused matrix have ((x, 1.0, 1.0),), at any width.
Blocks: TypeAlias = "float | tuple[Blocks, ...]"

_TOLERANCE = 1e-6  # relative; ratios of sizes are exact up to rounding


@dataclasses.dataclass(frozen=True)
class Factor:
    """A constant as powers of named ratios, each a number or `Blocks` of a parameter.

    Under a `Parametrization` it is

        constant * width^-width_power * depth^-alpha / uses * output^-gamma0_width_exponent * a^multiplier

    where ``uses`` divides if alpha is above 0 (`Parametrization.residual_multiplier`).
    """

    constant: Any = 1.0  # the same under every rule
    width: Any = 1.0  # m at a readout; (d / d_base)^1/2 at the scores of attention
    depth: Any = 1.0  # r of a branch
    uses: Any = 1.0  # n of a branch: uses of its weights over the base model's
    output: Any = 1.0  # m of the whole model, by which the output divisor depends on the width
    multiplier: Any = 0.0  # how often the rule's ``branch_multiplier`` a is in it

    @property
    def is_one(self) -> bool:
        """Whether it is 1 under every rule."""
        return all(_is_number(value) and value == field.default for field, value in self._items())

    @property
    def has_parts(self) -> bool:
        """Whether blocks of a parameter have numbers of their own."""
        return not all(_is_number(value) for _, value in self._items())

    def under(self, rule: Exponents, shape: tuple[int, ...] = ()) -> Any:
        """The number under a rule, or an array that broadcasts against ``shape``; traced if the rule's fields are."""
        powers = (
            (self.constant, 1.0),
            (self.width, -rule.width_power),
            (self.depth, -rule.alpha),
            (self.uses, -1.0 * (rule.alpha > 0)),
            (self.output, -rule.gamma0_width_exponent),
        )
        result: Any = 1.0
        for ratio, power in powers:
            if not (_is_number(ratio) and ratio == 1):
                result = result * broadcastable(ratio, shape) ** power
        if not (_is_number(self.multiplier) and self.multiplier == 0):
            result = result * rule.branch_multiplier ** broadcastable(self.multiplier, shape)
        return result

    def __mul__(self, other: Factor) -> Factor:
        """The product of two factors that are numbers."""
        ratios = {name: getattr(self, name) * getattr(other, name) for name in _RATIOS}
        return Factor(**ratios, multiplier=self.multiplier + other.multiplier)

    def __pow__(self, exponent: float) -> Factor:
        """A power of a factor that is a number."""
        ratios = {name: getattr(self, name) ** exponent for name in _RATIOS}
        return Factor(**ratios, multiplier=self.multiplier * exponent)

    def over(self, number: float) -> Factor:
        """The factor divided by a number; what is 1 up to rounding becomes 1."""
        constant = self.constant / number
        return dataclasses.replace(self, constant=1.0 if math.isclose(constant, 1.0, rel_tol=5e-3) else constant)

    def __str__(self) -> str:
        """``a 4^-alpha`` or ``1/8``: the width's part under muP; blocks that differ with a bar between them."""
        parts = [] if _is_one(self.constant) else [factor_text(self.constant)]
        parts += [f"1/{factor_text(ratio)}" for ratio in (self.width, self.uses) if not _is_one(ratio)]
        parts += ["a"] if np.any(np.asarray(self.multiplier) == 1) else []
        parts += [] if _is_one(self.depth) else [f"{factor_text(self.depth)}^-alpha"]
        return " ".join(parts) or "1"

    def _items(self) -> list[tuple[dataclasses.Field, Any]]:
        return [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]


ONE = Factor()
_RATIOS = ("constant", "width", "depth", "uses", "output")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real)


def _is_one(value: Any) -> bool:
    return _is_number(value) and math.isclose(value, 1.0, rel_tol=_TOLERANCE)


def in_blocks(values: np.ndarray) -> Blocks:
    """The fewest equal blocks with these values."""
    for axis, size in enumerate(values.shape):
        for count in range(1, size + 1):
            if size % count:
                continue
            first = np.take(values, np.arange(count) * (size // count), axis)
            if (np.repeat(first, size // count, axis) == values).all():
                values = first
                break
    return float(values.flat[0]) if values.size == 1 else as_tuples(values.tolist())


def as_tuples(x: Any) -> Any:
    """Nested lists as tuples; anything else as it is."""
    return tuple(map(as_tuples, x)) if isinstance(x, list) else x


def broadcastable(blocks: Any, shape: tuple[int, ...]) -> Any:
    """A number or an array as it is; the numbers of blocks as an array that broadcasts against ``shape``."""
    if not isinstance(blocks, tuple):
        return blocks
    values = np.asarray(blocks)
    for axis, count in enumerate(values.shape):
        values = np.repeat(values, 1 if count == 1 else shape[axis] // count, axis)
    return values


def factor_text(blocks: Any) -> str:
    """``0.5``, or ``0.5|1`` for different numbers of slices."""
    return "|".join(f"{x:.4g}" for x in np.unique(blocks))
