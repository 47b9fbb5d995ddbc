"""Data of the tasks, from fixed seeds: no run sees an example twice, or sees it with the same noise.

Committed records are named by a digest of this module: a change here makes new tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import numpy as np
import sklearn.datasets

Arrays: TypeAlias = tuple[np.ndarray, np.ndarray]  # inputs and targets
Prepare: TypeAlias = Callable[..., tuple[jax.Array, jax.Array]]

_EXAMPLES, _SEQUENCES, _CONTEXT = 32768, 8192, 32


def digits(noise: float = 1.5) -> tuple[Arrays, None, Prepare]:
    """Scikit-learn's digits, 8 x 8 pixels of deviation 1, with fresh noise of a deviation at every step."""
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    inputs = ((images - images.mean()) / images.std()).astype(np.float32).reshape(-1, 8, 8, 1)

    def noisy(key: jax.Array | None, batch: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        inputs, labels = batch
        return (inputs if key is None else inputs + noise * jax.random.normal(key, inputs.shape)), labels

    return (inputs, labels.astype(np.int32)), None, noisy


def clear() -> tuple[Arrays, None, Prepare]:
    """The digits with noise of deviation 0.3."""
    return digits(0.3)


def teacher() -> tuple[Arrays, None]:
    """Gaussian inputs (32, 1, 1); the label is the largest of the ten outputs of a random network of 64 units."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((_EXAMPLES, 32))
    hidden = np.maximum(inputs @ rng.standard_normal((32, 64)), 0)
    outputs = (hidden - hidden.mean(0)) @ rng.standard_normal((64, 10))
    return (inputs.astype(np.float32)[..., None, None], outputs.argmax(1).astype(np.int32)), None


def gratings() -> tuple[Arrays, None]:
    """Noisy waves of 8 x 8 pixels with random phases; the label is one of four directions and two wavelengths."""
    rng = np.random.default_rng(1)
    labels = rng.integers(8, size=_EXAMPLES)
    angles, waves = np.pi / 4 * (labels % 4), np.where(labels < 4, 0.9, 1.8)
    rows, columns = np.mgrid[:8, :8]
    along = rows * np.cos(angles)[:, None, None] + columns * np.sin(angles)[:, None, None]
    images = np.sin(waves[:, None, None] * along + rng.uniform(0, 2 * np.pi, (_EXAMPLES, 1, 1)))
    noisy = images + rng.standard_normal(images.shape)
    return (noisy.astype(np.float32)[..., None], labels.astype(np.int32)), None


def pairs() -> tuple[Arrays, None]:
    """Sequences of one chain of eight symbols, in which two of them give the distribution of the next."""
    rng = np.random.default_rng(2)
    return _sequences(rng, rng.dirichlet(np.full(8, 0.15), (1, 8, 8)))


def chains() -> tuple[Arrays, None]:
    """Sequences of one of four chains of sixteen symbols each: the symbols so far tell which."""
    rng = np.random.default_rng(3)
    table = rng.dirichlet(np.full(16, 0.15), (4, 1, 16))
    return _sequences(rng, np.broadcast_to(table, (4, 16, 16, 16)))


def _sequences(rng: np.random.Generator, table: np.ndarray) -> tuple[Arrays, None]:
    """Symbols and the next ones, from ``table`` (chains, symbol before, symbol, next symbol) of probabilities."""
    chain = rng.integers(len(table), size=_SEQUENCES)
    count = table.shape[-1]
    symbols = rng.integers(count, size=(_SEQUENCES, _CONTEXT + 1))
    steps = table.cumsum(-1)
    for place in range(2, _CONTEXT + 1):
        below = steps[chain, symbols[:, place - 2], symbols[:, place - 1]]
        drawn = (rng.uniform(size=(_SEQUENCES, 1)) > below).sum(1)
        symbols[:, place] = np.minimum(drawn, count - 1)
    return (symbols[:, :-1].astype(np.int32), symbols[:, 1:].astype(np.int32)), None
