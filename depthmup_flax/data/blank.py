"""Data sets of zeros with the right shapes, for plans on machines without the data."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import numpy as np

from depthmup_flax.data.dataset import ArraySplit, DataConfig, Dataset, placement, validation_count
from depthmup_flax.data.images import ImageDataset
from depthmup_flax.data.registry import LoadOnce, checked_source, named_split
from depthmup_flax.data.text import TextDataset, Tokenizer
from depthmup_flax.util.errors import InputError

# Published sets, by the last part of data.name -> training and test examples, classes, shape if all images share it.
_IMAGES: Mapping[str, tuple[int, int, int, tuple[int, int, int] | None]] = {
    "cifar10": (50_000, 10_000, 10, (32, 32, 3)),
    "cifar100": (50_000, 10_000, 100, (32, 32, 3)),
    "mnist": (60_000, 10_000, 10, (28, 28, 1)),
    "imagenet2012": (1_281_167, 50_000, 1000, None),
    "tiny-imagenet-200": (100_000, 10_000, 200, (64, 64, 3)),
}
_TEXTS = {"tinyshakespeare.txt": (1_115_394, 65)}  # characters, vocabulary
# By `DataSource.kind`, what to plan with in place of data that are not here.
_PLANNED = {
    "images": "To plan without the data, set data.name=tfds:imagenet2012 or synthetic.",
    "text": "To plan without the data, set data.name=text:tinyshakespeare.txt.",
}


class BlankSplit(ArraySplit):
    """A split of zeros, which take no memory."""

    def __init__(self, length: int, **fields: tuple[tuple[int, ...], np.dtype]) -> None:
        """``fields``: shape and dtype in one example."""
        super().__init__(
            {name: np.broadcast_to(np.zeros((), of), (length, *shape)) for name, (shape, of) in fields.items()}
        )


class PlannedData(LoadOnce):
    """Loads each data set once: the real one if it is here, else a blank one."""

    def __init__(self) -> None:
        super().__init__(_real_or_blank)


def _real_or_blank(fields: DataConfig) -> Dataset:
    source, place = checked_source(fields)
    try:
        dataset = source.load(place, fields)
    except InputError as error:
        if not place or source.kind == "arrays":
            raise
        known = _TEXTS if source.kind == "text" else _IMAGES
        if _last(place) not in known:
            raise InputError(f"{error} {_PLANNED[source.kind]}") from error
        dataset = (_blank_text if source.kind == "text" else _blank_images)(fields, place)
    return named_split(dataset, fields)


def _blank_images(fields: DataConfig, name: str) -> ImageDataset:
    train, test, classes, shape = _IMAGES[_last(name)]
    counts = _counts(fields, train, test)
    if fields.image_size:
        shape = (fields.image_size, fields.image_size, shape[-1] if shape else 3)
    if shape is None:
        raise InputError(f"data.name is {fields.name!r}: images may differ in size. Set data.image_size, as to 224.")
    image, label = (shape, np.dtype(np.uint8)), ((), np.dtype(np.int32))
    blank_train, blank_test = (BlankSplit(count, image=image, label=label) for count in counts)
    where = placement(fields, counts[0] * math.prod(shape))
    mean, std = (np.full(shape[-1], value, np.float32) for value in (0.45, 0.25))
    return ImageDataset(fields.name, blank_train, blank_test, classes, where, shape, mean, std)


def _blank_text(fields: DataConfig, name: str) -> TextDataset:
    (tokens, vocabulary), context = _TEXTS[_last(name)], fields.context
    vocabulary = 256 if fields.tokenizer == "byte" else vocabulary
    train, test = (max(0, tokens * part // 10 // context - 1) for part in (9, 1))  # windows overlap by half
    counts = _counts(fields, train, test)
    dtype = np.min_scalar_type(vocabulary - 1)
    lengths = zip(counts, (2 * context, context + 1), strict=True)
    blank_train, blank_test = (BlankSplit(count, tokens=((length,), dtype)) for count, length in lengths)
    tokenizer = Tokenizer("".join(map(chr, range(vocabulary))))
    where = placement(fields, 2 * counts[0] * context * dtype.itemsize)
    return TextDataset(fields.name, blank_train, blank_test, vocabulary, where, context, tokenizer)


def _last(place: str) -> str:
    """The last part of a path, or of a set's name."""
    return os.path.basename(os.path.normpath(place))


def _counts(fields: DataConfig, train: int, test: int) -> tuple[int, int]:
    """The numbers of training and of evaluated examples."""
    train = fields.train_examples or train
    held_out = validation_count(fields, train)
    return train - held_out, held_out or fields.test_examples or test
