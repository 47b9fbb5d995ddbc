"""Splits of encoded images: files or bytes that are decoded, cropped and resized when they are read.

An example is bad if its content cannot be decoded (`BadExample`): every host finds the same bad examples. A file that
is missing or cannot be read is not bad; it stops the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import io
import itertools
import logging
import math
import os
import stat
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from depthmup_flax.data.checksums import of_arrays, spaced
from depthmup_flax.data.crops import center_box, fit, random_box, resize_box
from depthmup_flax.data.dataset import DataConfig
from depthmup_flax.devices.host import cpu_cores
from depthmup_flax.util.errors import InputError, RunStopped
from depthmup_flax.util.extras import require
from depthmup_flax.util.types import HostBatch

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
CHUNK = 128  # images that are copied or summed at a time: 500 MB for the statistics of 224x224 pixels
MOST_BAD = 0.1  # of a split's examples, rounded up; more bad examples are an error
# Errors that stay until somebody changes the data set.
_LASTING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM)
_SAMPLE = 256  # encoded images of a split whose checksum is taken in any case
_MARKING = threading.Lock()  # of bad examples
_TASK = 8  # items at most: a task for another thread costs about as much as decoding a small image


class Encoded(NamedTuple):
    """One example before decoding."""

    where: str  # its name in messages
    source: str | bytes  # file path or encoded bytes
    label: int


Fetch = Callable[[list[int]], list[Encoded]]  # positions -> the examples there


class EncodedExamples(NamedTuple):
    """A split as its source has it."""

    fetch: Fetch
    size: int
    listing: str = ""  # checksum of their names and labels, where these are known without reading examples


class BadExample(InputError):
    """The content of an example cannot be decoded: ``problem`` is a sentence, ``reason`` the decoder's."""

    def __init__(self, problem: str, reason: object, remedies: str = "Replace or remove that file.") -> None:
        super().__init__(f"{problem} {remedies}")
        self.problem, self.reason = problem, reason


@dataclasses.dataclass(frozen=True)
class EncodedSplit:
    """A split of encoded images, decoded when read."""

    config: DataConfig
    name: str  # "training" or "test", for messages
    fetch: Fetch
    order: np.ndarray  # int64 [N], the source position of each example
    num_classes: int
    bad: np.ndarray  # bool, which source positions were found bad; empty if bad examples are errors
    image_shape: tuple[int, int, int]  # of every decoded image
    contents: np.ndarray  # uint32, CRC-32 of the encoded images that were read, by source position
    listing: str  # see `EncodedExamples`
    first: str = ""  # the image that has this shape, for messages

    def __len__(self) -> int:
        return len(self.order)

    def read(self, indices: np.ndarray, draws: np.ndarray | None = None) -> HostBatch:
        """See ``Split.read``; ``draws`` [B, ATTEMPTS, 4], of ``crops.crop_draws``, crop each image at random.

        The next good example of the split replaces a bad one.
        """
        batch, good = self.read_or_zeros(indices, draws)
        while not good.all():
            self._require_good_ones()  # else this loop might not end
            again = np.flatnonzero(~good)
            indices = np.where(good, indices, (indices + 1) % len(self))
            others, found = self.read_or_zeros(indices[again], None if draws is None else draws[again])
            for field, values in others.items():
                batch[field][again] = values
            good[again] = found
        return batch

    def read_or_zeros(
        self, indices: np.ndarray, draws: np.ndarray | None = None
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """`read` with zeros instead of bad examples; and which examples are good, bool [B]."""
        positions = self.order[indices]
        good = ~self.bad[positions] if self.bad.size else np.ones(len(positions), bool)
        examples = self.fetch(positions.tolist()) if len(positions) else []
        images = np.zeros((len(examples), *self.image_shape), np.uint8)

        def decode_one(i: int) -> None:
            try:
                example = self._loaded(int(positions[i]), examples[i])
                image = decode(example, self.image_shape[-1], self.config, None if draws is None else draws[i])
            except BadExample as error:
                self._mark_bad(int(positions[i]), error)
                good[i] = False
                return
            self._check(examples[i], image.shape)
            images[i] = image

        in_threads(decode_one, np.flatnonzero(good).tolist(), self.config.read_threads)
        return {"image": images, "label": np.array([example.label for example in examples], np.int32)}, good

    def arrays(self, only_good: bool = False) -> HostBatch:
        """See ``Split.arrays``; ``only_good`` drops bad examples instead of replacing them."""
        images, labels, count = np.empty((len(self), *self.image_shape), np.uint8), np.empty(len(self), np.int32), 0
        for start in range(0, len(self), CHUNK):
            part = np.arange(start, min(start + CHUNK, len(self)))
            batch, good = self.read_or_zeros(part) if only_good else (self.read(part), np.ones(len(part), bool))
            end = count + int(good.sum())
            images[count:end], labels[count:end], count = batch["image"][good], batch["label"][good], end
        return {"image": images[:count], "label": labels[:count]}

    def checksum(self) -> str:
        """See ``Split.checksum``; of all names and labels, and of some encoded images, spaced evenly."""

        def read_one(position: int) -> None:
            with contextlib.suppress(BadExample):
                self._loaded(position, self.fetch([position])[0])

        sample = self.order[spaced(len(self), _SAMPLE)]
        in_threads(read_one, [i for i in sample.tolist() if not self.contents[i]], self.config.read_threads)
        return of_arrays({self.listing: self.contents[sample]})

    def checksum_of_files(self) -> str:
        """That of all encoded images, which were read."""
        return of_arrays({"files": self.contents[self.order]})

    def _loaded(self, position: int, example: Encoded) -> Encoded:
        """The example at a source position with its bytes, of which the checksum is kept."""
        example = example._replace(source=encoded_image(example, self.config))
        if not self.contents[position]:  # each file once, not in each epoch
            self.contents[position] = zlib.crc32(example.source)  # type: ignore[arg-type]
        return example

    def take(self, order: np.ndarray) -> EncodedSplit:
        """The examples ``order``, in that order."""
        return dataclasses.replace(self, order=self.order[order])

    def first_good(self) -> tuple[tuple[int, int, int], str]:
        """The shape and the name of the first image that is not bad."""
        for position in self.order.tolist():
            (example,) = self.fetch([position])
            try:
                return decode(example, self.image_shape[-1], self.config).shape, example.where
            except BadExample as error:
                self._mark_bad(position, error)
        raise InputError(f"data.name is {self.config.name!r}: its {self.name} split is empty. Add images.")

    def _mark_bad(self, position: int, error: BadExample) -> None:
        """Marks the example at a source position as bad and warns of the first; raises if there are too many."""
        if not self.bad.size:
            remedies = "Replace or remove that file. To skip such examples, set data.on_bad_example=skip."
            raise BadExample(error.problem, error.reason, remedies) from error
        with _MARKING:
            first = not self.bad.any()
            self.bad[position] = True
        if first:
            use = "The next example replaces it" if self.name == "training" else "The test omits it"
            policy = "because data.on_bad_example is 'skip'"
            log.warning("%s %s, %s; others are skipped without a warning.", error.problem, use, policy)
        self._require_good_ones()

    def _require_good_ones(self) -> None:
        """InputError if more than ``MOST_BAD`` of the examples, or all, are bad."""
        count = int(self.bad[self.order].sum())
        if count >= len(self) or count > math.ceil(MOST_BAD * len(self)):
            raise InputError(
                f"data.on_bad_example is 'skip': at least {count} of the {len(self)} examples of the {self.name} split "
                f"of {self.config.name!r} cannot be decoded, more than {MOST_BAD:.0%}. Correct the data set; "
                "data.on_bad_example=error names the first of them."
            )

    def _check(self, example: Encoded, shape: tuple[int, ...]) -> None:
        if shape != self.image_shape:
            raise InputError(
                f"data.image_size is {self.config.image_size}: all images must have one size, but {self.first} is "
                f"{pixels(self.image_shape)} and {example.where} is {pixels(shape)}. "
                f"Set data.image_size, such as to {min(shape[:2])}, to resize and crop every image."
            )
        if not 0 <= example.label < self.num_classes:
            raise InputError(
                f"data.name is {self.config.name!r}: the label of {example.where} is {example.label}, outside "
                f"0..{self.num_classes - 1}. Correct or remove that example."
            )


def decode(example: Encoded, channels: int, config: DataConfig, draws: np.ndarray | None = None) -> np.ndarray:
    """Decodes, crops and resizes one image to uint8 [H, W, channels], with 1, 3 or 4 channels.

    If ``augment`` is "resized_crop", ``draws`` [ATTEMPTS, 4] crop the image at random, ``None`` at the center. EXIF's
    orientation is not applied, and transparency is dropped.

    Raises:
      BadExample: the content cannot be decoded.
      InputError, RunStopped: the file cannot be read.
    """
    require("PIL", f"data.name={config.name!r}")
    from PIL import Image, UnidentifiedImageError

    mode, size = _MODES[channels], config.image_size
    content = encoded_image(example, config)
    try:
        if not content:
            raise ValueError("it is empty")
        with Image.open(io.BytesIO(content)) as image:
            if image.format == "EPS":  # Pillow would start Ghostscript
                raise ValueError("it is EPS, a program that another program would run")
            if config.augment == "resized_crop":
                box = center_box(*image.size, size) if draws is None else random_box(draws.tolist(), *image.size)
                array = np.asarray(resize_box(image, mode, size, box))
            else:
                array = np.asarray(fit(image, mode, size))
    except MemoryError as error:
        raise RunStopped(
            f"data.name is {config.name!r}: there is not enough memory to decode its image {example.where}. Lower "
            "data.read_threads, then rerun the command."
        ) from error
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        reason = "Pillow cannot read its format" if isinstance(error, UnidentifiedImageError) else error
        raise _bad_example(example, config, reason) from error
    return array.reshape(*array.shape[:2], channels)


def _bad_example(example: Encoded, config: DataConfig, reason: object) -> BadExample:
    return BadExample(f"data.name is {config.name!r}: its image {example.where} cannot be read ({reason}).", reason)


def encoded_image(example: Encoded, config: DataConfig) -> bytes:
    """The bytes of an image.

    Raises:
      BadExample: its path is not that of a regular file.
      InputError, RunStopped: the file cannot be read.
    """
    path = example.source
    if isinstance(path, bytes):
        return path
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for a writer
            raise _bad_example(example, config, "it is not a regular file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        where = f"data.name is {config.name!r}: its image {printable_path(path)}"
        with contextlib.suppress(OSError):  # not a link
            where += f", a link to {os.readlink(path)!r},"
        raise read_error(where, error) from error


def read_error(where: str, error: OSError) -> InputError | RunStopped:
    """What to raise if a file or folder cannot be read: `RunStopped` if another attempt may succeed."""
    if error.errno in _LASTING:
        return InputError(f"{where} cannot be read ({error.strerror}). Restore it, or make it readable.")
    return RunStopped(f"{where} cannot be read ({error.strerror}). Check its storage, then rerun the command.")


def printable_path(path: str) -> str:
    """A path for messages; quoted and escaped if it has control characters or invalid UTF-8."""
    return path if path.isprintable() else repr(path)


def pixels(shape: tuple[int, ...]) -> str:
    """A shape for messages, such as 8x8x1."""
    return "x".join(map(str, shape))


def in_threads(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """``function`` of each item, in order, computed in ``threads`` threads (0: one per core). Nested calls deadlock."""
    threads = threads or cpu_cores()
    size = max(1, min(_TASK, math.ceil(len(items) / threads)))
    tasks = [items[start : start + size] for start in range(0, len(items), size)]
    results = _pool(threads).map(lambda task: [function(item) for item in task], tasks)
    return list(itertools.chain.from_iterable(results))


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    # Shared by all splits, so that concurrent readers share the cores. Pillow decodes without the GIL.
    return ThreadPoolExecutor(threads, thread_name_prefix="decode")
