"""Fitted powers of width or depth beside the expected ones, and tables of a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from depthmup_flax.power_fits import Fit, fit_power


@dataclasses.dataclass(frozen=True)
class Rate:
    """A fitted power beside the expected one, if there is one: a line of a report."""

    label: str
    sizes: Sequence[int]
    fit: Fit
    expected: float | None
    n: str

    def cells(self) -> list[str]:
        """The cells of the line."""
        return [
            self.label,
            ", ".join(map(str, self.sizes)) if len(self.sizes) < 6 else f"{self.sizes[0]} .. {self.sizes[-1]}",
            str(self.fit) if len(self.sizes) > 2 else "needs 3 sizes",
            "" if self.expected is None else f"{self.expected:+g}",
            self.n,
        ]


def rate(label: str, values_of_size: Mapping[int, Iterable[float]], expected: float | None, n: str | int) -> Rate:
    """The power of values over sizes; ``n`` is the number of networks, or where the values come from."""
    values = {size: [float(value) for value in of_size] for size, of_size in values_of_size.items()}
    return Rate(label, sorted(values), fit_power(values), expected, str(n))


def rates_table(rates: Sequence[Rate]) -> str:
    """All rates as aligned columns."""
    return aligned([["what", "sizes", "fitted power", "expected", "n"], *(rate.cells() for rate in rates)])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)


def range_text(values: Iterable[int]) -> str:
    """``16`` or ``16 to 64``."""
    low, high = min(values := list(values)), max(values)
    return str(low) if low == high else f"{low} to {high}"
