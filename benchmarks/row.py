"""A line of the table."""

from __future__ import annotations

import dataclasses
import math

Spread = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
      figure: the title of what is measured.
      case: on which network.
      against: the alternative.
      value: spread of the ratio (or of what ``unit`` says).
      bar: the bound, ``None`` where the value is only stated.
      at_most: whether the bound is from above.
      unit: ``x`` for ratios.
      note: a few words.
      seconds: contender -> spread of its seconds.
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
    """In place of a row whose alternative cannot be run here."""
    nothing = {"median": math.nan, "low": math.nan, "high": math.nan, "n": 0}
    return Row(title, "-", "-", nothing, note=f"not measured: {why}")
