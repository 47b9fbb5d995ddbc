"""Distances between the features of layers, and how they grow with the distance in depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.util.power_fits import student_t


def distances(stream_LxBxN: jax.Array, fractions: Sequence[float]) -> jax.Array:
    """(E,) ``d(eps)``, the root mean square of ``x^((lambda + eps) L) - x^(lambda L)``, for each fraction eps.

    Yang et al. (arXiv:2310.02244), Def. 7.6; the mean is over coordinates, inputs and ``lambda`` in steps of a layer.
    The stream is from ``x^0`` to ``x^L``; ``eps L`` is a whole number of layers.
    """
    layers = [round(fraction * (len(stream_LxBxN) - 1)) for fraction in fractions]
    return jnp.stack([jnp.sqrt(jnp.mean((stream_LxBxN[k:] - stream_LxBxN[:-k]) ** 2)) for k in layers])


def slopes(fractions: Sequence[float] | np.ndarray, distances_SxE: np.ndarray) -> np.ndarray:
    """(S,) least-squares slopes of log d over log eps, ``1 - kappa``, one per network; NaN where it diverged."""
    x = np.log(fractions) - np.log(fractions).mean()
    return np.log(distances_SxE) @ x / (x @ x)


def mean_interval(values_S: np.ndarray) -> tuple[float, float]:
    """The mean over seeds and half of its 95 % interval (Student's t)."""
    error = values_S.std(ddof=1) / math.sqrt(len(values_S))
    return float(values_S.mean()), float(student_t(len(values_S) - 1) * error)


def four_digits(values: Any) -> Any:
    """Nested lists of numbers with four digits; ``None`` where one overflowed."""
    if np.ndim(values):
        return [four_digits(value) for value in values]
    return float(f"{float(values):.4g}") if math.isfinite(float(values)) else None
