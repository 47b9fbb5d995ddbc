"""What a source of data is, and what sources share: limits, placement, images in memory and from files."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

import numpy as np

from depthmup_flax.data.dataset import ArraySplit, DataConfig, Dataset, Placement
from depthmup_flax.data.decoding import EncodedExamples, EncodedSplit
from depthmup_flax.data.images import ImageDataset, channel_statistics, from_arrays
from depthmup_flax.data.user_splits import RecordSplit
from depthmup_flax.util.errors import InputError

AnySplit = TypeVar("AnySplit", ArraySplit, EncodedSplit, ArraySplit | RecordSplit)


class NotHere(InputError):
    """The data are not on this machine; a plan uses blank ones instead."""


@dataclasses.dataclass(frozen=True)
class Source:
    """How to load what ``data.name`` says: a word of ``registry.SOURCES``, or a word, a colon and a place."""

    form: str  # of data.name, for messages: "digits", "folder:<dir>"
    load: Callable[[str, DataConfig], Dataset]  # of the place; raises NotHere if the data are absent
    kind: Literal["images", "text", "arrays"]
    reads: tuple[str, ...]  # fields of config.data that this source reads and some others ignore

    @property
    def has_place(self) -> bool:
        """Whether ``data.name`` has a colon and a place."""
        return ":" in self.form

    @property
    def decodes(self) -> bool:
        """Whether examples are image files, which can be damaged or cropped before they are resized."""
        return "on_bad_example" in self.reads


def placement(config: DataConfig, train_bytes: int) -> Placement:
    """Where a training set of ``train_bytes`` goes."""
    if config.augment == "resized_crop" or config.placement == "stream":
        return "stream"
    return "stream" if config.placement == "auto" and train_bytes > config.device_limit_mib * 2**20 else "device"


def limited(config: DataConfig, splits: Iterable[AnySplit]) -> list[AnySplit]:
    """The training and test split, cut to ``train_examples`` and ``test_examples``."""
    parts = []
    for split, field in zip(splits, ("train_examples", "test_examples"), strict=True):
        if (count := getattr(config, field)) > len(split):
            raise InputError(f"data.{field} is {count}: {config.name!r} has {len(split)}. Use 0 for all of them.")
        parts.append(split.take(np.random.default_rng(0).permutation(len(split))[:count]) if count else split)
    return parts


def with_validation(config: DataConfig, splits: Sequence[AnySplit]) -> list[AnySplit]:
    """The training and test split; with ``validation_fraction``, that share of the first, drawn at random, and no test.

    The same examples are drawn for every seed of a run.
    """
    train, test = splits
    if not config.validation_fraction:
        return [train, test]
    count = validation_count(config, len(train))
    order = np.random.default_rng(0).permutation(len(train))
    return [train.take(order[count:]), train.take(order[:count])]


def validation_count(config: DataConfig, train: int) -> int:
    """How many of ``train`` examples ``validation_fraction`` holds out; `InputError` if it leaves a split empty."""
    count = round(config.validation_fraction * train)
    if config.validation_fraction and not 0 < count < train:
        raise InputError(
            f"data.validation_fraction is {config.validation_fraction:g}: of {train} training examples that holds out "
            f"{count}. Use another share, or 0 to evaluate the test set."
        )
    return count


def images_in_memory(
    config: DataConfig, train: ArraySplit, test: ArraySplit, class_names: tuple[str, ...]
) -> ImageDataset:
    """The data set of two splits of images."""
    a, b = train.arrays(), test.arrays()
    dataset = from_arrays(a["image"], a["label"], b["image"], b["label"], len(class_names), config.name)
    return dataclasses.replace(dataset, placement=placement(config, a["image"].nbytes), class_names=class_names)


def images_of_files(
    config: DataConfig, train: EncodedExamples, test: EncodedExamples, channels: int, class_names: tuple[str, ...]
) -> ImageDataset:
    """The data set of encoded images, decoded now or when read; all have the shape of the first good training image."""
    bad = np.zeros(train.size + test.size if config.on_bad_example == "skip" else 0, bool)

    def split(name: str, given: EncodedExamples, marks: np.ndarray) -> EncodedSplit:
        order, contents = np.arange(given.size), np.zeros(given.size, np.uint32)
        shape = (0, 0, channels)
        return EncodedSplit(config, name, given.fetch, order, len(class_names), marks, shape, contents, given.listing)

    parts = split("training", train, bad[: train.size]), split("test", test, bad[train.size :])
    splits = with_validation(config, limited(config, parts))
    shape, first = splits[0].first_good()
    files, held_out = (dataclasses.replace(split, image_shape=shape, first=first) for split in splits)
    if placement(config, len(files) * int(np.prod(shape))) == "device":
        arrays = ArraySplit(files.arrays()), ArraySplit(held_out.arrays(only_good=True))
        dataset = dataclasses.replace(images_in_memory(config, *arrays, class_names), bad=bad)
    else:
        names, statistics = len(class_names), channel_statistics(files)
        dataset = ImageDataset(config.name, files, held_out, names, "stream", shape, *statistics, bad, class_names)
    return dataclasses.replace(dataset, encoded=(files, held_out))
