"""Characters of Tiny Shakespeare for networks of tokens; the file is ``$TEXT``. Records are named by this module."""

from __future__ import annotations

import os
import pathlib

import numpy as np

CONTEXT, TRAINED = 32, 0.9


def characters() -> tuple[tuple[np.ndarray, np.ndarray], None]:
    """Windows of the first nine tenths, side by side, [N, CONTEXT], and the characters that follow, [N, CONTEXT]."""
    text = np.frombuffer(pathlib.Path(os.environ.get("TEXT", "tinyshakespeare.txt")).read_bytes(), np.uint8)
    _, tokens = np.unique(text, return_inverse=True)
    trained = tokens[: int(TRAINED * len(tokens))].astype(np.int32)
    count = (len(trained) - 1) // CONTEXT
    inputs = trained[: count * CONTEXT].reshape(count, CONTEXT)
    targets = trained[1 : count * CONTEXT + 1].reshape(count, CONTEXT)
    return (inputs, targets), None
