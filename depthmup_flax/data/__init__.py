"""Image data: named sets, random access to their examples, batches that are a function of (seed, step), augmentation.

``load(config.data)`` (or ``from_arrays`` for your own arrays) gives a ``Dataset``. Its batches come from memory with
``batch_indices`` or, for sets that do not fit, from ``train_stream``: both give the same batches at the same step.
``augment`` and ``normalize`` run on the device, inside the train step.
"""

from depthmup_flax.data.augmentation import AUGMENTATIONS, augment, normalize
from depthmup_flax.data.batches import batch_indices, eval_batches, steps_per_epoch, train_stream
from depthmup_flax.data.dataset import Dataset, Split, from_arrays
from depthmup_flax.data.sources import DATA_DEFAULTS, load

__all__ = [
    "AUGMENTATIONS",
    "DATA_DEFAULTS",
    "Dataset",
    "Split",
    "augment",
    "batch_indices",
    "eval_batches",
    "from_arrays",
    "load",
    "normalize",
    "steps_per_epoch",
    "train_stream",
]
