"""Images and text: named sets, random access to their examples, batches that are a function of (seed, step).

``load(config.data)`` (or ``from_arrays`` for your own images) gives a ``Dataset``. Its batches come from memory with
``batch_indices`` or, for sets that do not fit, from ``train_stream``: both give the same batches at the same step. On
several hosts, each reads its part of every batch.
``Dataset.prepare`` turns a batch into inputs and labels on the device, inside the train step: images through
``augment`` and ``normalize``, text through ``shift``.
"""

from depthmup_flax.data.augmentation import AUGMENTATIONS, augment, normalize
from depthmup_flax.data.batches import batch_indices, eval_batches, steps_per_epoch, train_batch, train_stream
from depthmup_flax.data.dataset import Dataset, ImageDataset, Split, from_arrays
from depthmup_flax.data.sources import DATA_DEFAULTS, LoadOnce, load
from depthmup_flax.data.text import TextDataset, Tokenizer

__all__ = [
    "AUGMENTATIONS",
    "DATA_DEFAULTS",
    "Dataset",
    "ImageDataset",
    "LoadOnce",
    "Split",
    "TextDataset",
    "Tokenizer",
    "augment",
    "batch_indices",
    "eval_batches",
    "from_arrays",
    "load",
    "normalize",
    "steps_per_epoch",
    "train_batch",
    "train_stream",
]
