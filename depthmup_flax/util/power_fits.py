"""Power laws fitted to sizes: how a number scales with width, depth or the number of examples."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.special  # of JAX's own dependencies

ZERO = "zero"  # all values
EXPLODES = "explodes"  # some values are not finite or huge
BELOW_PRECISION = "below precision"  # too few values are above 0
HUGE = 1e15  # larger outputs count as exploded, whatever the slope


@dataclasses.dataclass(frozen=True)
class Fit:
    """``value ~ size^slope``: least squares of log value on log size over all sizes and seeds."""

    slope: float  # NaN unless fitted
    interval: float  # half-width of its 95 % confidence interval, from the residuals (Student's t)
    state: str = "fitted"  # or one of the constants above

    def __str__(self) -> str:
        return f"{self.slope:+.2f} +- {self.interval:.2f}" if self.state == "fitted" else self.state


def fit_power(values_of_size: Mapping[int, Sequence[float]]) -> Fit:
    """Least squares of log value on log size; keys are sizes, values one number per seed. See `Fit`."""
    pairs = [(size, value) for size, values in values_of_size.items() for value in values]
    values = np.array([value for _, value in pairs], np.float64)
    if len(values) and not values.any():
        return Fit(math.nan, math.nan, ZERO)
    if not np.isfinite(values).all() or values.max(initial=0) > HUGE:
        return Fit(math.nan, math.nan, EXPLODES)
    positive = values > 0
    x, y = np.log([size for size, _ in pairs])[positive], np.log(values[positive])
    if not positive.all() and len(set(x)) < 3:
        return Fit(math.nan, math.inf, BELOW_PRECISION)
    if len(set(x)) < 2 or len(x) < 3:
        return Fit(math.nan, math.inf)
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    return Fit(float(slope), student_t(len(x) - 2) * math.sqrt(covariance[0, 0]))


def student_t(freedom: int, probability: float = 0.975) -> float:
    """The quantile of Student's t distribution; NaN without a degree of freedom."""
    return float(scipy.special.stdtrit(freedom, probability)) if freedom > 0 else math.nan
