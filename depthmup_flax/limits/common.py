"""What the figures of this package share: checks of their configs, fitted rates as a table, and guides of a slope."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.errors import InputError
from depthmup_flax.fits import Fit, fit_power


@dataclasses.dataclass(frozen=True)
class Rate:
    """A fitted power beside the expected one: a line of a report."""

    what: str
    sizes: Sequence[int]
    fit: Fit
    expected: float
    n: str

    def cells(self) -> list[str]:
        """The line's cells."""
        return [self.what, ", ".join(map(str, self.sizes)), str(self.fit), f"{self.expected:+g}", self.n]


def rate(what: str, values: Mapping[int, Sequence[float]], expected: float, n: str) -> Rate:
    """The power of values over sizes."""
    return Rate(what, sorted(values), fit_power(values), expected, n)


def rates_table(rates: Sequence[Rate]) -> str:
    """Lines of aligned columns."""
    return aligned([["what", "sizes", "fitted power", "expected", "n"], *(rate.cells() for rate in rates)])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def require_sizes(config: ConfigDict, *names: str, at_least: int = 1) -> None:
    """Each field is a tuple of different whole numbers.

    Raises:
      InputError: one is not.
    """
    for name in names:
        found = config[name]
        values = list(found) if isinstance(found, (tuple, list)) else []
        whole = all(isinstance(value, int) and not isinstance(value, bool) and value >= at_least for value in values)
        if not values or not whole or len(set(values)) < len(values):
            raise InputError(
                f"config.{name} is {found!r}: give different whole numbers of at least {at_least}, such as (64, 128)."
            )


def require_whole(config: ConfigDict, *names: str, at_least: int = 1) -> None:
    """Each field is a whole number; InputError if not."""
    for name in names:
        if not isinstance(config[name], int) or isinstance(config[name], bool) or config[name] < at_least:
            raise InputError(f"config.{name} is {config[name]!r}: use a whole number of at least {at_least}.")


def require_positive(config: ConfigDict, *names: str) -> None:
    """Each field is a finite number above 0; InputError if not."""
    for name in names:
        value = config[name]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise InputError(f"config.{name} is {value!r}: use a positive number.")


def guide(panel: Any, sizes: Sequence[int], start: float, power: float, label: str | None = None) -> None:
    """A dashed line of an expected slope, from ``start`` at the smallest size."""
    x = np.array([min(sizes), max(sizes)], float)
    panel.plot(x, start * (x / x[0]) ** power, "--", color="0.45", linewidth=1.2, zorder=1, label=label)
