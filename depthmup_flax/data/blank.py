"""Data sets of zeros with the right shapes, for plans on machines without the data."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping

import numpy as np

from depthmup_flax.data.dataset import DataConfig, Dataset, NotHere, placement, validation_count
from depthmup_flax.data.images import ImageDataset
from depthmup_flax.data.registry import LoadOnce, checked_source, named_split
from depthmup_flax.data.text import TextDataset, Tokenizer
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import HostBatch

# Published sets, by the last part of data.name -> training and test examples, classes, shape if all images share it.
_IMAGES: Mapping[str, tuple[int, int, int, tuple[int, int, int] | None]] = {
    "cifar10": (50_000, 10_000, 10, (32, 32, 3)),
    "cifar100": (50_000, 10_000, 100, (32, 32, 3)),
    "mnist": (60_000, 10_000, 10, (28, 28, 1)),
    "imagenet2012": (1_281_167, 50_000, 1000, None),
    "tiny-imagenet-200": (100_000, 10_000, 200, (64, 64, 3)),
}
_TEXTS = {"tinyshakespeare.txt": (1_115_394, 65)}  # characters, vocabulary


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a set that is neither present nor known: ``--classes``, ``--examples``, ``--vocabulary``."""

    classes: int | None = None
    examples: int | None = None
    vocabulary: int | None = None


Fields = Mapping[str, tuple[tuple[int, ...], np.dtype]]  # shape and type in one example


@dataclasses.dataclass(frozen=True)
class BlankSplit:
    """A split of zeros."""

    length: int
    fields: Fields

    def __len__(self) -> int:
        return self.length

    def read(self, indices: np.ndarray) -> HostBatch:
        """See ``Split.read``."""
        return {name: np.zeros((len(indices), *shape), dtype) for name, (shape, dtype) in self.fields.items()}

    def arrays(self) -> HostBatch:
        """See ``Split.arrays``."""
        return self.read(np.arange(self.length))

    def checksum(self) -> str:
        """See ``Split.checksum``: of no content."""
        return f"{self.length:08x}"


class PlannedData(LoadOnce):
    """Loads each data set once: the real one if it is here, else a blank one."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(functools.partial(_real_or_blank, sizes))


def _real_or_blank(sizes: Sizes, fields: DataConfig) -> Dataset:
    source, place = checked_source(fields)
    try:
        dataset = source.load(place, fields)
    except NotHere:
        dataset = (_blank_text if source.kind == "text" else _blank_images)(fields, place, sizes)
    return named_split(dataset, fields)


def description(dataset: Dataset) -> str:
    """Size and place of a set, and whether it is blank."""
    origin = "blank, as it is not here" if isinstance(dataset.train, BlankSplit) else "read here"
    where = "streamed" if dataset.placement == "stream" else "on every device"
    return f"{dataset.name}, {dataset.train_size} {dataset.describe()}, {where}; {origin}"


def _blank_images(fields: DataConfig, name: str, sizes: Sizes) -> ImageDataset:
    train, test, classes, shape = _IMAGES.get(os.path.basename(os.path.normpath(name)), (0, 0, 0, None))
    classes = sizes.classes or classes
    train, test = _counts(fields, sizes, train, test)
    if not classes or not train:
        raise _unknown(fields, "--classes=1000 --examples=1000000")
    if fields.image_size:
        shape = (fields.image_size, fields.image_size, shape[-1] if shape else 3)
    if shape is None:
        raise InputError(
            f"data.name is {fields.name!r}: its images are not here and may differ in size. "
            "Set data.image_size, such as to 224."
        )
    spec: Fields = {"image": (shape, np.dtype(np.uint8)), "label": ((), np.dtype(np.int32))}
    train_split, test_split = (BlankSplit(count, spec) for count in (train, test))
    where = placement(fields, train * int(np.prod(shape)))
    mean, std = (np.full(shape[-1], value, np.float32) for value in (0.45, 0.25))
    return ImageDataset(fields.name, train_split, test_split, classes, where, shape, mean, std)


def _blank_text(fields: DataConfig, name: str, sizes: Sizes) -> TextDataset:
    (tokens, vocabulary), context = _TEXTS.get(os.path.basename(name), (0, 0)), fields.context
    vocabulary = sizes.vocabulary or (256 if fields.tokenizer == "byte" else vocabulary)
    windows = (max(0, tokens * part // 10 // context - 1) for part in (9, 1))  # windows overlap by half
    train, test = _counts(fields, sizes, *windows)
    if not vocabulary or not train:
        raise _unknown(fields, "--vocabulary=50304 --examples=1000000")
    dtype = np.min_scalar_type(vocabulary - 1)
    split = lambda count, length: BlankSplit(count, {"tokens": ((length,), dtype)})
    train_split, test_split = split(train, 2 * context), split(test, context + 1)
    tokenizer = Tokenizer("".join(map(chr, range(vocabulary))))
    where = placement(fields, 2 * train * context * dtype.itemsize)
    return TextDataset(fields.name, train_split, test_split, vocabulary, where, context, tokenizer)


def _counts(fields: DataConfig, sizes: Sizes, train: int, test: int) -> tuple[int, int]:
    train = sizes.examples or train
    test = fields.test_examples or test or max(1, train // 10)
    train = fields.train_examples or train
    held_out = validation_count(fields, train)
    return train - held_out, held_out or test


def _unknown(fields: DataConfig, flags: str) -> InputError:
    return InputError(
        f"data.name is {fields.name!r}: it is not on this machine, so its size is unknown. Give it: {flags}."
    )
