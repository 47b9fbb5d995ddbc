"""Fresh data of the eight tasks, from fixed seeds: no run sees an example twice.

Committed records are named by a digest of this module: a change here makes new tasks.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

Arrays: TypeAlias = tuple[np.ndarray, np.ndarray]  # inputs and targets

_EXAMPLES, _SEQUENCES, _CONTEXT = 32768, 8192, 32


def mixture() -> tuple[Arrays, None]:
    """Points (24, 1, 1) around thirty centers, three to each of the ten labels."""
    rng = np.random.default_rng(10)
    centers = rng.standard_normal((30, 24))
    drawn = rng.integers(30, size=_EXAMPLES)
    points = centers[drawn] + 1.4 * rng.standard_normal((_EXAMPLES, 24))
    return (points.astype(np.float32)[..., None, None], (drawn % 10).astype(np.int32)), None


def products() -> tuple[Arrays, None]:
    """Gaussian inputs (16, 1, 1); the label, of eight, is the signs of three sums of two products each."""
    rng = np.random.default_rng(11)
    inputs = rng.standard_normal((_EXAMPLES, 16))
    signs = [(inputs[:, k] * inputs[:, k + 1] + inputs[:, k + 2] * inputs[:, k + 3] > 0) for k in (0, 4, 8)]
    labels = signs[0] + 2 * signs[1] + 4 * signs[2]
    return (inputs.astype(np.float32)[..., None, None], labels.astype(np.int32)), None


_SHAPES = (
    ((0, 1), (1, 0), (1, 1), (1, 2), (2, 1)),  # a plus
    ((0, 0), (0, 2), (1, 1), (2, 0), (2, 2)),  # a cross
    ((0, 0), (0, 1), (0, 2), (1, 1), (2, 1)),  # a T
    ((0, 0), (1, 0), (2, 0), (2, 1), (2, 2)),  # an L
    ((0, 0), (0, 1), (1, 1), (2, 1), (2, 2)),  # a Z
    ((0, 0), (0, 2), (1, 0), (1, 2), (2, 1)),  # a V
)


def shapes(noise: float = 0.5) -> tuple[Arrays, None]:
    """Noisy images of 8 x 8 pixels with one of six shapes of five pixels at a random place."""
    rng = np.random.default_rng(12)
    labels = rng.integers(len(_SHAPES), size=_EXAMPLES)
    pixels = np.array(_SHAPES)[labels] + rng.integers(6, size=(_EXAMPLES, 1, 2))
    images = noise * rng.standard_normal((_EXAMPLES, 8, 8))
    images[np.arange(_EXAMPLES)[:, None], pixels[..., 0], pixels[..., 1]] += 2.0
    return (images.astype(np.float32)[..., None], labels.astype(np.int32)), None


def clear_shapes() -> tuple[Arrays, None]:
    """The shapes with noise of deviation 0.1."""
    return shapes(0.1)


def periods() -> tuple[Arrays, None]:
    """Sequences of twelve symbols with a period of four to seven; a tenth of the symbols is replaced by random ones."""
    rng = np.random.default_rng(13)
    period = rng.integers(4, 8, size=(_SEQUENCES, 1))
    motif = rng.integers(12, size=(_SEQUENCES, 7))
    place = np.arange(_CONTEXT + 1)[None] % period
    symbols = np.take_along_axis(motif, place, axis=1)
    noise = rng.uniform(size=symbols.shape) < 0.1
    symbols = np.where(noise, rng.integers(12, size=symbols.shape), symbols)
    return (symbols[:, :-1].astype(np.int32), symbols[:, 1:].astype(np.int32)), None


def mixtures_of_words() -> tuple[Arrays, None]:
    """Sequences of words of three symbols, of sixteen; each sequence draws its words from four of forty."""
    rng = np.random.default_rng(14)
    words = rng.integers(16, size=(40, 3))
    own = rng.integers(40, size=(_SEQUENCES, 4))
    drawn = np.take_along_axis(own, rng.integers(4, size=(_SEQUENCES, 11)), axis=1)
    symbols = words[drawn].reshape(_SEQUENCES, 33)
    return (symbols[:, :-1].astype(np.int32), symbols[:, 1:].astype(np.int32)), None
