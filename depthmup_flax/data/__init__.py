"""Images, text and your own data: named data sets, and batches that depend only on (seed, step).

``Dataset.prepare`` turns a batch into inputs and labels on the device, inside the train step. A new source is a
function that returns a ``Dataset``, and an entry in ``registry.SOURCES``.
"""

from depthmup_flax.data.augmentation import AUGMENTATIONS, augment, normalize
from depthmup_flax.data.batches import (
    batch_indices,
    eval_batches,
    steps_of_epoch,
    steps_per_epoch,
    train_batch,
    train_stream,
)
from depthmup_flax.data.dataset import DATA_DEFAULTS, DataConfig, Dataset, Split, chance_loss
from depthmup_flax.data.images import ImageDataset, from_arrays
from depthmup_flax.data.registry import LoadOnce, load
from depthmup_flax.data.text import TextDataset, Tokenizer
from depthmup_flax.data.user_data import UserDataset

__all__ = [
    "AUGMENTATIONS", "DATA_DEFAULTS", "DataConfig", "Dataset", "ImageDataset", "LoadOnce", "Split", "TextDataset",
    "Tokenizer", "UserDataset", "augment", "batch_indices", "chance_loss", "eval_batches", "from_arrays", "load",
    "normalize", "steps_of_epoch", "steps_per_epoch", "train_batch", "train_stream",
]  # fmt: skip
