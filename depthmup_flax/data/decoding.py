"""Splits of encoded images: files or bytes that are decoded, cropped and resized when they are read."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from depthmup_flax.data.crops import center_box, fit, random_box, resize_box
from depthmup_flax.data.dataset import DataConfig
from depthmup_flax.errors import InputError
from depthmup_flax.types import HostBatch

Item = TypeVar("Item")
Result = TypeVar("Result")

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Images in memory at a time, before they are copied or summed: at 224x224 the statistics then take some 500 MB.
CHUNK = 128
_TASK = 8  # items at most: handing a task to another thread takes about as long as decoding a small image


class Encoded(NamedTuple):
    """One example before decoding."""

    where: str  # its name in messages
    source: str | bytes  # file path or encoded bytes
    label: int


Fetch = Callable[[list[int]], list[Encoded]]  # positions -> the examples there
EncodedExamples = tuple[Fetch, int]  # and their number


class EncodedSet(NamedTuple):
    """An image set on disk: its two splits, and what it declares."""

    train: EncodedExamples
    test: EncodedExamples
    num_classes: int
    channels: int

    def split(self, config: DataConfig) -> list[EncodedSplit]:
        """The training and test split; the first training image sets the shape of all."""
        (first,) = self.train[0]([0])
        shape = decode(first, self.channels, config).shape
        return [
            EncodedSplit(config, fetch, np.arange(length), self.num_classes, shape, first.where)
            for fetch, length in (self.train, self.test)
        ]


@dataclasses.dataclass(frozen=True)
class EncodedSplit:
    """A split of encoded images, decoded when read."""

    config: DataConfig  # decides crops, size and number of threads
    fetch: Fetch
    order: np.ndarray  # int64 [N], the source position of each example
    num_classes: int
    image_shape: tuple[int, int, int]  # of every decoded image
    first: str  # the image that image_shape was taken from, for messages

    def __len__(self) -> int:
        return len(self.order)

    def read(self, indices: np.ndarray, draws: np.ndarray | None = None) -> HostBatch:
        """See ``Split.read``; ``draws`` [B, ATTEMPTS, 4], of ``crops.crop_draws``, crop each image at random."""
        examples = self.fetch(self.order[indices].tolist()) if len(indices) else []
        images = np.empty((len(examples), *self.image_shape), np.uint8)

        def decode_one(i: int) -> None:
            image = decode(examples[i], self.image_shape[-1], self.config, None if draws is None else draws[i])
            self._check(examples[i], image.shape)
            images[i] = image

        in_threads(decode_one, range(len(examples)), self.config.read_threads)
        return {"image": images, "label": np.array([example.label for example in examples], np.int32)}

    def arrays(self) -> HostBatch:
        """See ``Split.arrays``."""
        images, labels = np.empty((len(self), *self.image_shape), np.uint8), np.empty(len(self), np.int32)
        for part in np.split(np.arange(len(self)), range(CHUNK, len(self), CHUNK)):
            batch = self.read(part)
            images[part], labels[part] = batch["image"], batch["label"]
        return {"image": images, "label": labels}

    def take(self, order: np.ndarray) -> EncodedSplit:
        """The examples ``order``, in that order."""
        return dataclasses.replace(self, order=self.order[order])

    def _check(self, example: Encoded, shape: tuple[int, ...]) -> None:
        if shape != self.image_shape:
            raise InputError(
                f"data.image_size is {self.config.image_size}, which needs images of one size, but {self.first} is "
                f"{pixels(self.image_shape)} and {example.where} is {pixels(shape)}; "
                f"set data.image_size (for example {min(shape[:2])}) to resize and crop every image."
            )
        if not 0 <= example.label < self.num_classes:
            raise InputError(
                f"data.name is {self.config.name!r}, but the label of {example.where} is {example.label}, outside "
                f"0..{self.num_classes - 1}; correct or remove that example."
            )


def decode(example: Encoded, channels: int, config: DataConfig, draws: np.ndarray | None = None) -> np.ndarray:
    """Decodes, crops and resizes one image to uint8 [H, W, channels].

    Files of other modes are converted to 1, 3 or 4 ``channels``: sets of color photographs hold gray and CMYK files.
    If ``augment`` is "resized_crop", ``draws`` [ATTEMPTS, 4] crop the image at random, ``None`` at the center.
    """
    from PIL import Image

    mode, size = _MODES[channels], config.image_size
    source = io.BytesIO(example.source) if isinstance(example.source, bytes) else example.source
    try:
        with Image.open(source) as image:
            if config.augment == "resized_crop":
                box = center_box(*image.size, size) if draws is None else random_box(draws.tolist(), *image.size)
                array = np.asarray(resize_box(image, mode, size, box))
            else:
                array = np.asarray(fit(image, mode, size))
    except Exception as error:  # Pillow's decoders raise many types on damaged files.
        raise InputError(
            f"data.name is {config.name!r}, but its image {example.where} cannot be read ({error}); "
            "replace or remove that file."
        ) from error
    return array.reshape(*array.shape[:2], channels)


def pixels(shape: tuple[int, ...]) -> str:
    """A shape for messages, such as 8x8x1."""
    return "x".join(map(str, shape))


def in_threads(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """``function`` of each item, in order, computed in ``threads`` threads (0: one for each core of the process).

    ``function`` must not call ``in_threads`` itself: that deadlocks.
    """
    if not threads:
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    size = max(1, min(_TASK, math.ceil(len(items) / threads)))
    tasks = [items[start : start + size] for start in range(0, len(items), size)]
    results = _pool(threads).map(lambda task: [function(item) for item in task], tasks)
    return list(itertools.chain.from_iterable(results))


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    # One for all splits: Pillow decodes without the GIL, and concurrent readers share the cores.
    return ThreadPoolExecutor(threads, thread_name_prefix="decode")
