"""Characters and the one that follows, for networks that take vectors: Tiny Shakespeare, of 65 characters."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Split: TypeAlias = tuple[np.ndarray, np.ndarray]
CONTEXT, TESTED = 8, 20_000


def load() -> tuple[Split, Split, Callable[..., tuple[jax.Array, jax.Array]]]:
    """Windows of the first nine tenths, and 20,000 of the last tenth at random places; the file is ``$TEXT``."""
    text = np.frombuffer(pathlib.Path(os.environ.get("TEXT", "tinyshakespeare.txt")).read_bytes(), np.uint8)
    characters, tokens = np.unique(text, return_inverse=True)
    tokens = tokens.astype(np.uint8)
    train, test = np.split(tokens, [int(0.9 * len(tokens))])
    places = np.random.default_rng(0).choice(len(test) - CONTEXT, TESTED, replace=False)

    def prepare(_: jax.Array | None, batch: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        before, after = batch
        return jax.nn.one_hot(before, len(characters))[..., None], after.astype(jnp.int32)

    return _windows(train, np.arange(len(train) - CONTEXT)), _windows(test, places), prepare


def _windows(tokens: np.ndarray, places: np.ndarray) -> Split:
    """The characters at the places (N,): ``[N, CONTEXT]``, and the next one, ``[N]``."""
    return tokens[places[:, None] + np.arange(CONTEXT)], tokens[places + CONTEXT].astype(np.int32)
