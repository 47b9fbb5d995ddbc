"""What the figures of this package share: checks of their configs, fitted rates as a table, and guides of a slope."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.errors import InputError
from depthmup_flax.power_fits import Fit, fit_power

GROUPS = 8  # of networks, whose mean errors are the points of a fit


@dataclasses.dataclass(frozen=True)
class Rate:
    """A fitted power beside the expected one, if there is one: a line of a report."""

    what: str
    sizes: Sequence[int]
    fit: Fit
    expected: float | None
    n: str

    def cells(self) -> list[str]:
        """The line's cells."""
        enough = len(self.sizes) > 2
        return [
            self.what,
            ", ".join(map(str, self.sizes)) if len(self.sizes) < 6 else f"{self.sizes[0]} .. {self.sizes[-1]}",
            str(self.fit) if enough else "needs 3 sizes",
            "" if self.expected is None else f"{self.expected:+g}",
            self.n,
        ]


def rate(what: str, values: Mapping[int, Iterable[float]], expected: float | None, n: str) -> Rate:
    """The power of values over sizes."""
    listed = {size: [float(value) for value in of_size] for size, of_size in values.items()}
    return Rate(what, sorted(listed), fit_power(listed), expected, n)


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


def _is_whole(value: Any, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def require_sizes(config: ConfigDict, *names: str, at_least: int = 1) -> None:
    """Each field is a tuple of different whole numbers.

    Raises:
      InputError: one is not.
    """
    for name in names:
        found = config[name]
        values = list(found) if isinstance(found, (tuple, list)) else []
        if not values or not all(_is_whole(value, at_least) for value in values) or len(set(values)) < len(values):
            raise InputError(
                f"config.{name} is {found!r}: give different whole numbers of at least {at_least}, such as (64, 128)."
            )


def require_whole(config: ConfigDict, *names: str, at_least: int = 1) -> None:
    """Each field is a whole number; InputError if not."""
    for name in names:
        if not _is_whole(config[name], at_least):
            raise InputError(f"config.{name} is {config[name]!r}: use a whole number of at least {at_least}.")


def require_positive(config: ConfigDict, *names: str) -> None:
    """Each field is a finite number above 0; InputError if not."""
    for name in names:
        value = config[name]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise InputError(f"config.{name} is {value!r}: use a positive number.")


def require_in_groups(config: ConfigDict, *names: str) -> None:
    """Each field is a number of networks that `GROUPS` divides; InputError if not."""
    for name in names:
        value = config[name]
        if not _is_whole(value, 2 * GROUPS) or value % GROUPS:
            raise InputError(f"config.{name} is {value!r}: use a multiple of {GROUPS} from {2 * GROUPS} up.")


def networks_of(widths: Sequence[int], seeds: int) -> dict[int, int]:
    """Width -> networks: ``seeds`` of the widest, twice as many of half its width, at half the cost."""
    return {width: seeds * (max(widths) // width) for width in sorted(widths)}


def spoken_range(values: Iterable[int]) -> str:
    """``16`` or ``16 to 64``."""
    low, high = min(values := list(values)), max(values)
    return str(low) if low == high else f"{low} to {high}"


def keys_of(seed: int, width: int, depth: int, count: int) -> jax.Array:
    """Keys of networks that share nothing with those of another size, so that errors of sizes are independent."""
    return jax.random.split(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), width), depth), count)


def in_groups(of_seeds: np.ndarray) -> list[float]:
    """Means of `GROUPS` groups of networks."""
    return [float(value) for value in of_seeds.reshape(GROUPS, -1).mean(1)]


def draw_groups(panel: Any, groups_of_size: Mapping[int, Iterable[float]], color: Any, label: str) -> None:
    """Mean and standard deviation over groups of networks, over size."""
    found = np.array([list(values) for values in groups_of_size.values()])
    panel.errorbar(
        list(groups_of_size),
        found.mean(1),
        found.std(1, ddof=1),
        color=color,
        fmt="o-",
        markersize=4,
        linewidth=1.2,
        capsize=2,
        label=label,
    )


def legend_below(panel: Any, columns: int = 2) -> None:
    """A legend that covers no data."""
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=columns, fontsize=8, frameon=False)


def guide(panel: Any, sizes: Sequence[int], start: float, power: float, label: str | None = None) -> None:
    """A dashed line of an expected slope, from ``start`` at the smallest size."""
    x = np.array([min(sizes), max(sizes)], float)
    panel.plot(x, start * (x / x[0]) ** power, "--", color="0.45", linewidth=1.2, zorder=1, label=label)
