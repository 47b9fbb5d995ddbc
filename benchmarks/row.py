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
      bar: bound of the ratio; ``None``: no bound.
      at_most: whether the bound is an upper bound.
      unit: ``x`` for ratios.
      note: remark in the table.
      seconds: contender -> spread of its times.
      stack: of this package, as `benchmarks.setting.Stack.name` has it; filled in by `benchmarks.run` if empty.
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
    stack: str = ""

    @property
    def judgment(self) -> str:
        """``met`` or ``missed`` if both quartiles say so, else ``within noise``; empty without a bound or a value."""
        if self.bar is None or not self.value["n"]:
            return ""
        inside = {
            end <= self.bar if self.at_most else end >= self.bar for end in (self.value["low"], self.value["high"])
        }
        return "within noise" if len(inside) == 2 else "met" if inside.pop() else "missed"


def unavailable(title: str, why: str) -> Row:
    """A row that says why the figure was not measured."""
    no_value = {"median": math.nan, "low": math.nan, "high": math.nan, "n": 0}
    return Row(title, "-", "-", no_value, note=f"not measured: {why}")
