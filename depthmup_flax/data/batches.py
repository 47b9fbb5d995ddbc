"""Training batches as a pure function of (seed, step), streams of them, and evaluation batches.

Training in memory and from a stream sees the same batches, and a resumed run needs no saved position.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np

from depthmup_flax.data.dataset import Split
from depthmup_flax.data.image_files import ImageFiles, crop_draws
from depthmup_flax.data.user_data import BatchStream
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.imports import require
from depthmup_flax.util.types import HostBatch

Rows = slice | np.ndarray
_MAX_STEPS = 2**40  # Grain needs a length


def steps_of_epoch(split: Split, batch_size: int) -> int | None:
    """`steps_per_epoch` of a training split; None for batches by seed, which have no epochs."""
    if isinstance(split, BatchStream):
        split.require_size(batch_size)
        return None
    return steps_per_epoch(len(split), batch_size)


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Whole batches in one pass over the examples; InputError if there is none."""
    if not 1 <= batch_size <= num_examples:
        raise InputError(f"train.batch_size is {batch_size}: use 1 to {num_examples}, the number of training examples.")
    return num_examples // batch_size


@functools.lru_cache(maxsize=32)  # a sweep trains several seeds at a time
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    order = np.random.default_rng((seed, epoch)).permutation(num_examples).astype(np.int32)
    order.setflags(write=False)
    return order


def batch_indices(seed: int, step: int, num_examples: int, batch_size: int) -> np.ndarray:
    """The examples of training step ``step``, counted from 0: int32 [batch_size].

    Each epoch of ``steps_per_epoch(num_examples, batch_size)`` steps follows a new permutation, keyed by (seed, epoch),
    and drops the incomplete last batch.
    """
    epoch, position = divmod(step, steps_per_epoch(num_examples, batch_size))
    start = position * batch_size
    return _permutation(seed, epoch, num_examples)[start : start + batch_size].copy()


def train_batch(split: Split, seed: int, step: int, batch_size: int, rows: Rows = slice(None)) -> HostBatch:
    """The batch of a step: a function of (seed, step, place). ``rows``: the places that this host reads."""
    if isinstance(split, BatchStream):
        split.require_size(batch_size)
        return {field: values[rows] for field, values in split.batch(seed, step).items()}
    indices = batch_indices(seed, step, len(split), batch_size)[rows]
    if isinstance(split, ImageFiles) and split.config.crops_files:
        return split.read(indices, crop_draws(seed, step, batch_size)[rows])
    return split.read(indices)


def train_stream(
    split: Split, seed: int, batch_size: int, start_step: int = 0, rows: Rows = slice(None)
) -> Iterator[HostBatch]:
    """An endless iterator over ``train_batch`` from ``start_step``.

    Examples with random access are read ahead in threads, by Grain, whose ``get_state`` and ``set_state`` (and
    checkpoint handler) save and restore the position, which is the step. A user's batches by seed are read in order,
    also those before ``start_step``.
    """
    if isinstance(split, BatchStream):
        return (train_batch(split, seed, step, batch_size, rows) for step in itertools.count(start_step))
    require("grain", "a stream of training batches")
    import grain

    steps_per_epoch(len(split), batch_size)
    steps = grain.MapDataset.range(_MAX_STEPS).map(lambda step: train_batch(split, seed, int(step), batch_size, rows))
    iterator = iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=4)))
    if start_step:
        grain.experimental.set_next_index(iterator, start_step)
    return iterator


def eval_batches(split: Split, batch_size: int, rows: Rows = slice(None)) -> Iterator[HostBatch]:
    """Every example once, in order, in batches of ``batch_size``: the fields of ``split.read``, and ``mask``.

    ``mask`` is float32 [batch_size]: 1 for an example, 0 for the zeros that fill the last batch. ``rows`` are the
    places in each batch that this host reads; all hosts get equally many batches.
    """
    places = np.arange(batch_size)[rows]
    for start in range(0, len(split), batch_size):
        real = start + places < len(split)
        examples = split.read(start + places[real])
        batch = {**examples, "mask": np.ones(int(real.sum()), np.float32)}
        missing = len(real) - int(real.sum())  # at the end, since places ascend
        filled = lambda x, missing=missing: np.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)])
        yield {field: filled(x) if missing else x for field, x in batch.items()}
