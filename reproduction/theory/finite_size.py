"""The distance of a finite network to the limit, split into the parts of initial weights, width and depth.

Bordelon et al. (arXiv:2309.16620), App. I, Eq. 112-116, for a network's outputs f_{N,L} with <> over initial weights:

    variance    <(f_{N,L} - <f_{N,L}>)^2>         as N^-1, at every L  (App. H)
    mean error  (<f_{N,L}> - f_{inf,L})^2         as N^-2
    depth error (f_{inf,L} - f_{inf,inf})^2       as L^-2

The paper bounds the total by the sum of their norms. The first is exactly orthogonal to the others, so

    <(f_{N,L} - f_{inf,inf})^2> = variance + (<f_{N,L}> - f_{inf,inf})^2,

and averaging over an ensemble removes the first term.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from depthmup_flax.util.errors import InputError
from reproduction.theory.argument_checks import require_finite


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Outputs of networks that differ in their initial weights: (...) mean and unbiased variance over ``count``."""

    mean: np.ndarray
    variance: np.ndarray
    count: int

    @classmethod
    def of(cls, outputs: ArrayLike) -> Ensemble:
        """The statistics of (E, ...) outputs; InputError for fewer than two networks."""
        outputs = np.asarray(outputs, np.float64)
        require_finite("outputs", outputs)
        if outputs.ndim < 2 or len(outputs) < 2:
            raise InputError(f"outputs has shape {outputs.shape}: a variance needs at least two networks.")
        return cls(outputs.mean(0), outputs.var(0, ddof=1), len(outputs))


class SquareError(NamedTuple):
    """A mean square and its standard error, which takes outputs for different inputs as independent."""

    value: float
    error: float


@dataclasses.dataclass(frozen=True)
class FiniteSizeError:
    """Mean square errors over outputs. The estimates are unbiased: those near zero may be negative."""

    total: SquareError  # one network to the limit
    ensembled: SquareError  # the mean of an infinitely large ensemble to the limit
    variance: SquareError  # a network to that mean
    mean: SquareError  # that mean to infinite width at the same depth
    depth: SquareError  # infinite width at this depth to the limit


def finite_size_error(
    networks: Ensemble,
    at_depth: ArrayLike,
    limit: ArrayLike,
    *,
    at_depth_error: ArrayLike = 0.0,
    limit_error: ArrayLike = 0.0,
) -> FiniteSizeError:
    """The decomposition of this module's docstring; InputError for shapes that do not match.

    Args:
      networks: outputs f_{N,L}.
      at_depth: (...) f_{inf,L}, such as ``nonlinear_training(...).mean.outputs``.
      limit: (...) f_{inf,inf}, such as ``infinite_depth(...).mean.outputs``.
      at_depth_error, limit_error: independent standard errors of these two, from `nonlinear_training` with two keys.
    """
    mean, variance = networks.mean, networks.variance
    at_depth, limit = np.asarray(at_depth, np.float64), np.asarray(limit, np.float64)
    errors = {"at_depth_error": at_depth_error, "limit_error": limit_error}
    for name, value in {"at_depth": at_depth, "limit": limit, **errors}.items():
        if np.shape(value) != mean.shape and not (name in errors and np.ndim(value) == 0):
            raise InputError(f"{name} has shape {np.shape(value)}: give {mean.shape}, as the networks' outputs.")
    mean_noise = variance / networks.count
    depth_noise, limit_noise = (np.broadcast_to(np.square(e), mean.shape) for e in (at_depth_error, limit_error))
    relative = (2 / (networks.count - 1)) ** 0.5  # standard error of a variance of Gaussian outputs
    spread = SquareError(float(variance.mean()), float((variance**2).sum() ** 0.5 / mean.size) * relative)
    ensembled = _square(mean - limit, mean_noise + limit_noise)
    return FiniteSizeError(
        total=SquareError(spread.value + ensembled.value, float(np.hypot(spread.error, ensembled.error))),
        ensembled=ensembled,
        variance=spread,
        mean=_square(mean - at_depth, mean_noise + depth_noise),
        depth=_square(at_depth - limit, depth_noise + limit_noise),
    )


def _square(difference: np.ndarray, noise: np.ndarray) -> SquareError:
    """The mean square of a difference whose error has variance ``noise``."""
    value = (difference**2 - noise).mean()
    error = (4 * difference**2 * noise + 2 * noise**2).sum() ** 0.5 / difference.size
    return SquareError(float(value), float(error))
