"""Fitted powers of width or depth beside the expected ones, and tables of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from depthmup_flax.util.power_fits import fit_power
from depthmup_flax.util.table import Table

Line = list[str]  # cells of a table


def rate(label: str, values_of_size: Mapping[int, Iterable[float]], expected: float | None, n: str | int) -> Line:
    """The fitted power of values over sizes; ``n`` is the number of networks, or where the values come from."""
    values = {size: [float(value) for value in of_size] for size, of_size in values_of_size.items()}
    sizes = sorted(values)
    return [
        label,
        ", ".join(map(str, sizes)) if len(sizes) < 6 else f"{sizes[0]} .. {sizes[-1]}",
        str(fit_power(values)) if len(sizes) > 2 else "needs 3 sizes",
        "" if expected is None else f"{expected:+g}",
        str(n),
    ]


def rates_table(rates: Sequence[Line]) -> str:
    """The lines of `rate` as aligned columns."""
    return aligned([["what", "sizes", "fitted power", "expected", "n"], *rates])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first aligned left, the others right."""
    return str(Table(lines[0], lines[1:], "<" + ">" * (len(lines[0]) - 1)))


def range_text(values: Iterable[int]) -> str:
    """``16`` or ``16 to 64``."""
    low, high = min(values := list(values)), max(values)
    return str(low) if low == high else f"{low} to {high}"
