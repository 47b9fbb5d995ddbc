"""How an exponent changes as networks grow: a finite size is no mistake."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from depthmup_flax.util.power_fits import student_t


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
