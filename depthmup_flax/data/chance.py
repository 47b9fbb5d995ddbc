"""The loss of a constant guess, below which a network has learned something."""

from __future__ import annotations

import jax
import numpy as np

from depthmup_flax.data.dataset import ArraySplit, Dataset
from depthmup_flax.data.user_data import UserDataset

_EXAMPLES, _CHUNK = 4096, 512  # examples of the training set, evenly spaced; and how many are read at a time


def chance_loss(dataset: Dataset) -> float | None:
    """The entropy of the training labels in nats: the cross-entropy of the best constant guess.

    For balanced classes it is the logarithm of their number, for text the entropy of single tokens. From frequencies
    f_k of K labels among N it is ``-sum_k f_k log f_k + (K - 1) / (2 N)`` (Miller, 1955, corrects the bias). ``None``
    without classes, and for batches without end.
    """
    if not dataset.num_classes or not dataset.has_epochs:
        return None
    counts = np.unique(_labels(dataset), return_counts=True)[1]
    frequencies = counts / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum() + (len(counts) - 1) / (2 * counts.sum()))


def _labels(dataset: Dataset) -> np.ndarray:
    """(N,): all labels of images in memory, else those of a sample."""
    of_users = isinstance(dataset, UserDataset)
    if isinstance(dataset.train, ArraySplit) and "label" in dataset.train.fields and not of_users:
        return dataset.train.fields["label"]
    size = len(dataset.train)
    chunk = min(size, _CHUNK)
    parts = np.linspace(0, size - 1, min(size, _EXAMPLES) // chunk * chunk).astype(np.int64).reshape(-1, chunk)
    prepared = jax.jit(lambda batch: dataset.prepare("none", None, batch)[1])
    read = lambda batch: batch["label" if "label" in batch else "tokens"]
    labels = prepared if of_users else read
    return np.concatenate([np.ravel(labels(dataset.train.read(part))) for part in parts])
