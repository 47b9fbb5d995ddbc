"""How far a finite network is from the limit, and what of that is width, what depth and what chance.

Bordelon et al. (arXiv:2309.16620), App. I, Eq. 112-116, for a network's outputs f_{N,L} with <> over initial weights:

    variance    <(f_{N,L} - <f_{N,L}>)^2>         as N^-1, whatever L  (App. H)
    mean error  (<f_{N,L}> - f_{inf,L})^2         as N^-2
    depth error (f_{inf,L} - f_{inf,inf})^2       as L^-2

The paper states them as norms that add up at most; the first is exactly orthogonal to the others, so

    <(f_{N,L} - f_{inf,inf})^2> = variance + (<f_{N,L}> - f_{inf,inf})^2,

of which an ensemble of networks keeps the second term.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from depthmup_flax.errors import InputError
from depthmup_flax.theory.kernels import require_finite


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Outputs of E networks that differ in their initial weights.

    Attributes:
      mean: (...) over networks.
      variance: (...) over networks, unbiased.
      count: E.
    """

    mean: Any
    variance: Any
    count: int

    @classmethod
    def of(cls, outputs: Any) -> Ensemble:
        """From (E, ...) outputs; InputError for fewer than two networks."""
        outputs = np.asarray(outputs, np.float64)
        require_finite("outputs", outputs)
        if outputs.ndim < 2 or len(outputs) < 2:
            raise InputError(f"outputs has shape {outputs.shape}: a variance needs at least two networks.")
        return cls(outputs.mean(0), outputs.var(0, ddof=1), len(outputs))


class SquareError(NamedTuple):
    """A mean square and its standard error, as if outputs for different inputs were independent."""

    value: float
    error: float


@dataclasses.dataclass(frozen=True)
class FiniteSizeError:
    """Mean square errors over outputs; estimates without bias, so those that are near zero may be negative.

    Attributes:
      total: of one network to the limit.
      ensembled: of the ensemble's mean, were it infinitely large, to the limit.
      variance: of a network around that mean.
      mean: of that mean to infinite width at the same depth.
      depth: of infinite width at this depth to the limit.
    """

    total: SquareError
    ensembled: SquareError
    variance: SquareError
    mean: SquareError
    depth: SquareError


def finite_size_error(
    networks: Ensemble, at_depth: Any, limit: Any, *, at_depth_error: Any = 0.0, limit_error: Any = 0.0
) -> FiniteSizeError:
    """The decomposition of this module's docstring.

    Args:
      networks: outputs f_{N,L}.
      at_depth: (...) f_{inf,L}, such as `nonlinear_training`'s mean.outputs.
      limit: (...) f_{inf,inf}, such as `infinite_depth`'s.
      at_depth_error, limit_error: standard errors of these two, independent (`nonlinear_training` with another key).

    Raises:
      InputError: shapes that do not fit.
    """
    mean, variance = np.asarray(networks.mean), np.asarray(networks.variance)
    at_depth, limit = np.asarray(at_depth, np.float64), np.asarray(limit, np.float64)
    for name, value in (("at_depth", at_depth), ("limit", limit)):
        if value.shape != mean.shape:
            raise InputError(f"{name} has shape {value.shape}: give {mean.shape}, as the networks' outputs.")
    for name, error in (("at_depth_error", at_depth_error), ("limit_error", limit_error)):
        if np.shape(error) not in ((), mean.shape):
            raise InputError(f"{name} has shape {np.shape(error)}: give {mean.shape}, or one number.")
    of_mean = variance / networks.count
    of_depth, of_limit = (np.broadcast_to(np.asarray(e) ** 2, mean.shape) for e in (at_depth_error, limit_error))
    spread = SquareError(float(variance.mean()), float((variance**2).sum() ** 0.5 / mean.size) * _of_variance(networks))
    ensembled = _square(mean - limit, of_mean + of_limit)
    total = SquareError(spread.value + ensembled.value, float(np.hypot(spread.error, ensembled.error)))
    return FiniteSizeError(
        total=total,
        ensembled=ensembled,
        variance=spread,
        mean=_square(mean - at_depth, of_mean + of_depth),
        depth=_square(at_depth - limit, of_depth + of_limit),
    )


def _of_variance(networks: Ensemble) -> float:
    """Relative standard error of a variance of Gaussian outputs."""
    return (2 / (networks.count - 1)) ** 0.5


def _square(difference: np.ndarray, noise: np.ndarray) -> SquareError:
    """Mean of the square of a difference that is known with variance ``noise``."""
    value = (difference**2 - noise).mean()
    error = (4 * difference**2 * noise + 2 * noise**2).sum() ** 0.5 / difference.size
    return SquareError(float(value), float(error))
