"""The path of features over depth: how far apart layers are, and how that grows with their distance in depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from depthmup_flax.errors import InputError


def distances(stream_LxBxN: jax.Array, fractions: Sequence[float]) -> jax.Array:
    """``d(eps)`` of TP6 Def. 7.6, (E,): the root mean square of ``x^((lambda + eps) L) - x^(lambda L)``.

    Over coordinates, inputs and every ``lambda`` in steps of a layer; ``stream_LxBxN`` is from ``x^0`` to ``x^L``.
    """
    layers = [round(fraction * (len(stream_LxBxN) - 1)) for fraction in fractions]
    return jnp.stack([jnp.sqrt(jnp.mean((stream_LxBxN[k:] - stream_LxBxN[:-k]) ** 2)) for k in layers])


def slopes(fractions: Sequence[float] | np.ndarray, distances_SxE: np.ndarray) -> np.ndarray:
    """(S,) least-squares slopes of log d over log eps, ``1 - kappa``: one per network; NaN where it diverged."""
    x, y_SxE = np.log(fractions), np.log(distances_SxE)
    x = x - x.mean()
    return y_SxE @ x / (x @ x)


def mean_interval(values_S: np.ndarray) -> tuple[float, float]:
    """The mean over seeds and half of its 95 % interval (Student's t)."""
    error = values_S.std(ddof=1) / math.sqrt(len(values_S))
    return float(values_S.mean()), float(scipy.stats.t.ppf(0.975, len(values_S) - 1) * error)


def require_fractions(fractions: Any, depths: Sequence[int]) -> None:
    """``config.fractions`` of every depth must be whole numbers of layers.

    Raises:
      InputError: they are not.
    """
    rising = isinstance(fractions, (tuple, list)) and len(fractions) > 1 and list(fractions) == sorted(set(fractions))
    layers = [depth * fraction for depth in depths for fraction in fractions] if rising else [0.0]
    if not all(layer >= 1 and layer == round(layer) for layer in layers) or fractions[-1] >= 1:
        raise InputError(
            f"config.fractions is {fractions!r}: give two or more rising fractions below 1 that are whole numbers of "
            f"layers at depths {', '.join(map(str, depths))}, such as (0.125, 0.25)."
        )


def digits(values: Any) -> Any:
    """Nested lists of four digits; ``None`` where it overflowed."""
    if np.ndim(values):
        return [digits(value) for value in values]
    return float(f"{float(values):.4g}") if math.isfinite(float(values)) else None
