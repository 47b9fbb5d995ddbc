"""The numbers that a check records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

OUTPUT = "output"
# Quantities of parameters, each over the rule's own power of width and depth: equal at all sizes.
START, GRADIENT, UPDATE, DECAY, EFFECT = "start", "gradient", "update", "decay", "effect"
LEAST_UPDATE, MOST_UPDATE = "least_update", "most_update"
# Quantities of activations.
ACTIVATION, CHANGE = "activation", "change"


class Size(NamedTuple):
    """One network of a check; the first four fields of its records."""

    axis: str  # "width" or "depth": what varies
    size: int  # the network's value of `axis`
    width: int
    depth: int


@dataclasses.dataclass(frozen=True)
class Record:
    """One number of one network; see `Size`.

    Quantities of parameters are root mean squares, divided by the power of width and depth that the rule gives them
    (`depthmup_flax.rule.measures`):

    * ``start``: of the initial values;
    * ``gradient`` and ``update`` of a step, the update without the weight decay of the first step;
    * ``least_update`` and ``most_update``: the extremes over the layers that share a name;
    * ``decay``: of the first update without a gradient, over that of the parameter;
    * ``effect``: the change of the loss by one layer's update, to first order. Only of parameters whose updates are
      not entrywise, of which the size of entries says little.

    Quantities of activations, only where the audit does not judge the code, are ``activation``, the root mean square
    before training, and ``change``, that of the change since then.
    """

    axis: str
    size: int
    width: int
    depth: int
    seed: int
    step: int  # 0 before training
    quantity: str
    name: str  # the activation or parameter; layer indices are `*`
    value: float


Values = dict[int, list[float]]  # size -> one value per seed


class Table:
    """Records by what they measure."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._values: dict[tuple[str, str, str, int], Values] = {}
        self._sizes: dict[str, set[int]] = {}
        for r in records:
            by_size = self._values.setdefault((r.axis, r.quantity, r.name, r.step), {})
            by_size.setdefault(r.size, []).append(r.value)
            self._sizes.setdefault(r.axis, set()).add(r.size)

    def axes(self) -> list[str]:
        """The axes that vary, width first."""
        return sorted(self._sizes, reverse=True)

    def sizes(self, axis: str) -> list[int]:
        """The sizes along an axis."""
        return sorted(self._sizes[axis])

    def names(self, axis: str, quantity: str) -> list[str]:
        """Names that have a record at every size."""
        whole = [key for key, by_size in self._values.items() if len(by_size) == len(self._sizes[key[0]])]
        return list(dict.fromkeys(key[2] for key in whole if key[:2] == (axis, quantity)))

    def steps(self, axis: str, quantity: str, name: str) -> list[int]:
        """The recorded steps."""
        return sorted({key[3] for key in self._values if key[:3] == (axis, quantity, name)})

    def values(self, axis: str, quantity: str, name: str, step: int) -> Values:
        """Size -> one value per seed."""
        return self._values.get((axis, quantity, name, step), {})
