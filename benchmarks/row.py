"""A row of the table."""

from __future__ import annotations

import dataclasses
import math

Spread = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
      figure: title of the measurement.
      case: the network.
      against: the alternative.
      value: spread of the ratio, or of another quantity in ``unit``.
      bar: bound of the median; ``None``: no bound.
      at_most: whether the bound is an upper bound.
      unit: ``x`` for ratios.
      note: remark in the table.
      seconds: contender -> spread of its times.
    """

    figure: str
    case: str
    against: str
    value: Spread
    bar: float | None = None
    at_most: bool = True
    unit: str = "x"
    note: str = ""
    seconds: dict[str, Spread] = dataclasses.field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the median is within the bound."""
        if self.bar is None:
            return None
        return self.value["median"] <= self.bar if self.at_most else self.value["median"] >= self.bar


def unavailable(title: str, why: str) -> Row:
    """A row that says why the figure was not measured."""
    no_value = {"median": math.nan, "low": math.nan, "high": math.nan, "n": 0}
    return Row(title, "-", "-", no_value, note=f"not measured: {why}")
