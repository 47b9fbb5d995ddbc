"""Encoded images: decoded, cropped and resized by Pillow on the host when they are read."""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
import math
import pathlib
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depthmup_flax.data.dataset import DataConfig, Split, checksum_of_arrays, spaced
from depthmup_flax.devices.host import cpu_cores
from depthmup_flax.util.errors import InputError, RunStopped
from depthmup_flax.util.imports import require
from depthmup_flax.util.types import HostBatch

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".jpeg", ".jpg", ".png")
# "resized_crop" is the usual recipe of ImageNet: training reads a `random_box`, evaluation a `center_box`.
AREA = (0.08, 1.0)  # of the image
RATIO = (3 / 4, 4 / 3)  # width / height
ATTEMPTS = 10
EVAL_RESIZE = 256 / 224  # evaluation resizes the shorter side to this multiple of the size, then crops the center
_STREAM = 0xC209  # separates the random numbers of crops from those of the data order, keyed by (seed, epoch)
_BILINEAR = 2  # PIL.Image.Resampling.BILINEAR, without importing Pillow
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SAMPLE = 256  # images of a split whose checksum is taken
Box = tuple[float, float, float, float]


class Encoded(NamedTuple):
    """One example before decoding."""

    where: str  # its name in messages
    source: str | bytes  # file path or encoded bytes
    label: int


Fetch = Callable[[list[int]], list[Encoded]]  # positions -> the examples there


@dataclasses.dataclass(frozen=True)
class ImageFiles(Split):
    """A split of encoded images, decoded when read."""

    config: DataConfig
    fetch: Fetch
    order: np.ndarray  # int64 [N], the source position of each example
    image_shape: tuple[int, int, int]  # of every decoded image
    listing: str = ""  # checksum of all names and labels, where these are known without reading examples

    def __len__(self) -> int:
        return len(self.order)

    def read(self, indices: np.ndarray, draws: np.ndarray | None = None) -> HostBatch:
        """See ``Split.read``; ``draws`` [B, ATTEMPTS, 4], of `crop_draws`, crop each image at random."""
        examples = self.fetch(self.order[indices].tolist()) if len(indices) else []
        labels = np.array([example.label for example in examples], np.int32)
        crops = [None] * len(examples) if draws is None else list(draws)
        images = np.empty((len(examples), *self.image_shape), np.uint8)
        for place, image in enumerate(_pool().map(self._decoded, examples, crops)):
            images[place] = image
        return {"image": images, "label": labels}

    def checksum(self) -> str:
        """See ``Split.checksum``; of all names and labels, and of some encoded images, spaced evenly."""
        sample = self.fetch(self.order[spaced(len(self), _SAMPLE)].tolist())
        contents = list(_pool().map(lambda example: zlib.crc32(_content(example, self.config)), sample))
        return checksum_of_arrays({self.listing: np.array(contents, np.uint32)})

    def take(self, order: np.ndarray) -> ImageFiles:
        """The examples ``order``, in that order."""
        return dataclasses.replace(self, order=self.order[order])

    def _decoded(self, example: Encoded, draws: np.ndarray | None) -> np.ndarray:
        image = decode(example, self.image_shape[-1], self.config, draws)
        if image.shape != self.image_shape:
            raise InputError(
                f"data.image_size is {self.config.image_size}: the first image is {pixels(self.image_shape)} and "
                f"{example.where} is {pixels(image.shape)}. Set it, to resize and crop every image."
            )
        return image


def decode(example: Encoded, channels: int, config: DataConfig, draws: np.ndarray | None = None) -> np.ndarray:
    """Decodes, crops and resizes one JPEG or PNG to uint8 [H, W, channels], with 1, 3 or 4 channels.

    If ``augment`` is "resized_crop", ``draws`` [ATTEMPTS, 4] crop the image at random, ``None`` at the center. EXIF's
    orientation is not applied, and transparency is dropped. `InputError` for an image that cannot be read.
    """
    require("PIL", f"data.name={config.name!r}")
    from PIL import Image

    mode, size, content = _MODES[channels], config.image_size, _content(example, config)
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            if image.mode.startswith(("I", "F")):  # Pillow would clip them to 255
                raise ValueError("its pixels have 16 bits; convert it to 8")
            if config.crops_files:
                box = center_box(*image.size, size) if draws is None else random_box(draws.tolist(), *image.size)
                array = np.asarray(resize_box(image, mode, size, box))
            else:
                array = np.asarray(fit(image, mode, size))
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        raise _unreadable(example, config, error) from error
    return array.reshape(*array.shape[:2], channels)


def _content(example: Encoded, config: DataConfig) -> bytes:
    if isinstance(example.source, bytes):
        return example.source
    try:
        return pathlib.Path(example.source).read_bytes()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EACCES, errno.EISDIR):
            raise _unreadable(example, config, error) from error
        raise RunStopped(f"{example.where} cannot be read ({error}). Check it, then rerun the command.") from error


def _unreadable(example: Encoded, config: DataConfig, error: Exception) -> InputError:
    reason = str(getattr(error, "strerror", None) or error).partition(" <")[0]  # Pillow adds the address of its buffer
    problem = f"data.name is {config.name!r}: its image {example.where} cannot be read ({reason})."
    return InputError(f"{problem} Replace or remove that file.")


def pixels(shape: tuple[int, ...]) -> str:
    """A shape for messages, such as 8x8x1."""
    return "x".join(map(str, shape))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    # Shared by all splits, so that concurrent readers share the cores. Pillow decodes without the GIL.
    return ThreadPoolExecutor(cpu_cores(), thread_name_prefix="decode")


def crop_draws(seed: int, step: int, batch_size: int) -> np.ndarray:
    """For ``random_box``, by (seed, step, place in the global batch): float64 [batch_size, ATTEMPTS, 4] in [0, 1)."""
    return np.random.default_rng((seed, step, _STREAM)).random((batch_size, ATTEMPTS, 4))


def random_box(draws: Sequence[Sequence[float]], width: int, height: int) -> Box:
    """A random box (left, top, right, bottom), in whole pixels of an image of ``width`` x ``height``.

    The area is uniform in ``AREA``, the aspect ratio log-uniform in ``RATIO``. ``draws`` are four numbers in [0, 1) for
    each attempt: area, logarithm of the ratio, left, top. The first box that fits counts, else the largest centered
    box of an allowed ratio.
    """
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for area_draw, ratio_draw, left_draw, top_draw in draws:
        area = (AREA[0] + (AREA[1] - AREA[0]) * area_draw) * width * height
        ratio = math.exp(low + (high - low) * ratio_draw)
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, top = int(left_draw * (width - across + 1)), int(top_draw * (height - down + 1))
            return left, top, left + across, top + down
    across, down = min(width, max(1, round(height * RATIO[1]))), min(height, max(1, round(width / RATIO[0])))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down


def center_box(width: int, height: int, size: int) -> Box:
    """The center ``size`` x ``size`` after resizing the shorter side to ``size * EVAL_RESIZE``, in source pixels."""
    side = min(width, height) * size / round(size * EVAL_RESIZE)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def resize_box(image: Image.Image, mode: str, size: int, box: Box) -> Image.Image:
    """The part ``box`` of an image, in ``mode``, resized to ``size`` x ``size``; a large JPEG is decoded smaller."""
    (left, top, right, bottom), (width, height) = box, image.size
    drafted = image.draft(None, (math.ceil(width * size / (right - left)), math.ceil(height * size / (bottom - top))))
    scale = 1 if drafted is None else round(width / drafted[1][2])
    box = left / scale, top / scale, right / scale, bottom / scale
    return _in_mode(image, mode).resize((size, size), _BILINEAR, box=box)


def fit(image: Image.Image, mode: str, size: int) -> Image.Image:
    """The center square of an image in ``mode``, resized to ``size`` pixels; the whole image if ``size`` is 0."""
    from PIL import ImageOps

    if not size:
        return _in_mode(image, mode)
    image.draft(None, (size, size))
    return ImageOps.fit(_in_mode(image, mode), (size, size), _BILINEAR)


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)  # which would copy it


def checked_images(images: object, shape: tuple[int, int, int]) -> np.ndarray:
    """A user's images ``[B, *shape]`` in 0..255: uint8 as given, or float32 from floats in 0..1; else `InputError`."""
    array = np.asarray(images)
    if array.shape[1:] != shape:
        wanted = f"[B, {', '.join(map(str, shape))}]"
        raise InputError(f"images have shape {list(array.shape)}: the network reads {wanted}. Resize, or add the axis.")
    top = {"i": 255, "u": 255, "f": 1}.get(array.dtype.kind)
    if top is None or not (array.size == 0 or (array.min() >= 0 and array.max() <= top)):  # also for NaN
        raise InputError(f"images are {array.dtype}: give integers in 0..255, or floats in 0..1.")
    return array.astype(np.float32) * np.float32(255) if top == 1 else array.astype(np.uint8)
