"""The numbers that a check records, and the powers and trends fitted to them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from depthmup_flax.util.power_fits import HUGE, fit_power, student_t

OUTPUT = "output"
LEAST_UPDATE, MOST_UPDATE = "least_update", "most_update"

# Groups of parameters that train together. A weight's own group has the path of its module.
EVERYTHING = "everything"  # all parameters, from a readout at zero
AT_ONCE = "everything, from a random readout"  # whose updates are those of every group alone
BRANCHES = "branches"  # all parameters inside residual branches
BRANCH_VECTORS, OTHER_VECTORS = "vectors in branches", "vectors outside"


class Size(NamedTuple):
    """One network of a check; the first four fields of its records."""

    axis: str  # "width" or "depth": what varies
    size: int  # the network's value of `axis`
    width: int
    depth: int


@dataclasses.dataclass(frozen=True)
class Record:
    """One number of one network; see `Size`.

    Quantities of activations are ``activation`` (RMS), ``change`` (RMS of the change since step 0) and ``aligned`` (RMS
    of the part of the output's change that is along the loss's slope at step 0).

    Quantities of parameters are ``weight`` (RMS at step 0), ``gradient`` (RMS at step 0, through a random readout),
    ``update`` (RMS of the last change), ``gradient_update`` (RMS of the last change without the weight decay of the
    first), ``least_update`` and ``most_update`` (its extremes over the layers that share a name) and ``decay`` (RMS of
    the first change without a gradient, divided by ``weight``).
    """

    axis: str
    size: int
    width: int
    depth: int
    seed: int
    group: str  # the parameters that train
    step: int  # optimizer steps taken
    quantity: str
    name: str  # the activation or parameter; layer indices are `*`
    value: float


class Table:
    """Records by what they measure; ``hidden`` activations are not `features`."""

    def __init__(self, records: Sequence[Record], hidden: Collection[str] = ()) -> None:
        self._hidden = frozenset(hidden)
        self._values: dict[tuple[str, str, str, str, int], dict[int, list[float]]] = {}
        for r in records:
            by_size = self._values.setdefault((r.axis, r.group, r.quantity, r.name, r.step), {})
            by_size.setdefault(r.size, []).append(r.value)
        # Activations at every size, without copies, such as the stream that a block returns.
        self.activations = {axis: self._distinct_activations(axis) for axis in self.axes()}

    def axes(self) -> list[str]:
        """The axes that vary, width first."""
        return sorted({key[0] for key in self._values}, reverse=True)

    def sizes(self, axis: str) -> list[int]:
        """The sizes along an axis."""
        return sorted({size for key, by_size in self._values.items() if key[0] == axis for size in by_size})

    def groups(self, axis: str) -> list[str]:
        """`EVERYTHING`, `BRANCHES`, then the others by name, without `AT_ONCE`."""
        order = {EVERYTHING: 0, BRANCHES: 1}
        groups = {key[1] for key in self._values if key[0] == axis} - {AT_ONCE}
        return sorted(groups, key=lambda g: (order.get(g, 2), g))

    def run_of(self, axis: str, group: str) -> str:
        """The run that has a group's gradients through a random readout and its updates: its own, or `AT_ONCE`."""
        return group if group in self.groups(axis) else AT_ONCE

    def names(self, axis: str, group: str, quantity: str) -> list[str]:
        """Names that have a record at every size."""
        count = len(self.sizes(axis))
        keys = (key for key, by_size in self._values.items() if len(by_size) == count)
        return list(dict.fromkeys(key[3] for key in keys if key[:3] == (axis, group, quantity)))

    def features(self, axis: str) -> list[str]:
        """``activations`` without hidden ones."""
        return [name for name in self.activations[axis] if name not in self._hidden]

    def steps(self, axis: str, group: str, quantity: str) -> list[int]:
        """The recorded steps."""
        return sorted({key[4] for key in self._values if key[:3] == (axis, group, quantity)})

    def values(self, axis: str, group: str, quantity: str, name: str, step: int) -> dict[int, list[float]]:
        """Size -> one value per seed."""
        return self._values.get((axis, group, quantity, name, step), {})

    def feature_changes(self, axis: str, group: str, step: int, names: Sequence[str]) -> dict[int, list[float]]:
        """The change of the features ``names``, as `values`; infinite if one explodes, {} if none changes.

        Over width, this is the geometric mean of all that change. Over depth, it is the change of the stream: among
        those with at least half of the largest change in the deepest network, the one with the largest exponent.
        (Inside a branch, its own weights, which move by ``L^-gamma``, may cause a change.)
        """
        changes: dict[str, dict[int, list[float]]] = {}
        for name in names:
            by_size = self.values(axis, group, "change", name, step)
            values = [v for seeds in by_size.values() for v in seeds]
            if not by_size or min(values) == 0:
                continue
            if not all(math.isfinite(v) and v < HUGE for v in values):
                return {size: [math.inf] for size in by_size}
            changes[name] = by_size
        if not changes:
            return {}
        if axis == "depth":
            largest = self.sizes(axis)[-1]
            last = {name: float(np.exp(np.mean(np.log(by_size[largest])))) for name, by_size in changes.items()}
            large = [name for name in changes if last[name] >= max(last.values()) / 2]
            return changes[max(large, key=lambda name: fit_power(changes[name]).slope)]
        sizes = next(iter(changes.values()))
        return {s: list(np.exp(np.mean([np.log(c[s]) for c in changes.values()], axis=0))) for s in sizes}

    def _distinct_activations(self, axis: str) -> list[str]:
        steps = self.steps(axis, EVERYTHING, "activation")
        names = self.names(axis, EVERYTHING, "activation")
        first_with_values: dict[str, str] = {}
        for name in sorted(names, key=lambda n: (n != OUTPUT, n.count("/"), names.index(n))):
            values = [self.values(axis, EVERYTHING, "activation", name, step) for step in steps]
            first_with_values.setdefault(repr(values), name)
        return [name for name in names if name in first_with_values.values()]


@dataclasses.dataclass(frozen=True)
class Trend:
    """``log value = constant + limit * log size + k * smallest / size``: a power with a finite-size correction.

    Finite networks deviate from their limit by terms that fall as 1/size, such as the noise of a random readout in
    squares. The exponent between neighboring sizes then changes in the same way.
    """

    slopes: tuple[float, ...]  # between neighboring sizes
    limit: float  # the exponent at infinite size
    settled: bool  # the correction is resolved: the 95 % interval of k excludes 0

    def converges(self, expected: float, tolerance: float) -> bool:
        """Whether the exponent clearly `approaches` the expected one."""
        return self.settled and self.approaches(expected, tolerance)

    def arrived(self, expected: float, tolerance: float) -> bool:
        """Whether the exponent between the two largest sizes is within the tolerance."""
        return abs(self.slopes[-1] - expected) <= tolerance

    def approaches(self, expected: float, tolerance: float) -> bool:
        """Whether the exponent moves toward the expected one, which the limit has within the tolerance."""
        first, last = (abs(slope - expected) for slope in (self.slopes[0], self.slopes[-1]))
        return last < first and abs(self.limit - expected) <= tolerance

    def sizes_needed(self, sizes: Sequence[int], expected: float, tolerance: float) -> tuple[int, ...]:
        """The sizes times a power of two, at which the exponent should be within half of the tolerance."""
        ratio = abs(self.slopes[-1] - expected) / (tolerance / 2)
        factor = 2 ** min(3, max(1, math.ceil(math.log2(max(ratio, 1.0)))))
        return tuple(size * factor for size in sorted(sizes))


def fit_trend(values_of_size: Mapping[int, Sequence[float]]) -> Trend | None:
    """The trend of values (one per seed) over at least three sizes; ``None`` if one is not positive and finite."""
    values = {size: np.array(values_of_size[size], np.float64) for size in sorted(values_of_size)}
    if len(values) < 3 or not all(len(v) and np.all(np.isfinite(v)) and np.all(v > 0) for v in values.values()):
        return None
    means = {size: float(np.mean(np.log(v))) for size, v in values.items()}
    slopes = tuple((means[b] - means[a]) / math.log(b / a) for a, b in itertools.pairwise(means))
    sizes = np.array([size for size, v in values.items() for _ in v], np.float64)
    y = np.log(np.concatenate(list(values.values())))
    design = np.stack([np.ones_like(sizes), np.log(sizes), sizes.min() / sizes], axis=1)
    coefficients, *_ = np.linalg.lstsq(design, y, rcond=None)
    freedom = len(y) - 3
    variance = float(np.sum((y - design @ coefficients) ** 2)) / max(freedom, 1)
    error = math.sqrt(variance * float(np.linalg.inv(design.T @ design)[2, 2]))
    settled = freedom > 0 and abs(coefficients[2]) > student_t(freedom) * error
    return Trend(slopes, float(coefficients[1]), bool(settled))
