"""Encoded images to uint8 arrays on the host, with Pillow."""

import functools
import io
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from depthmup_flax.data.crops import in_mode
from depthmup_flax.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Items per task, at most: the hand-over to another thread takes about as long as decoding one small image.
_TASK = 8


class Encoded(NamedTuple):
    """One example before decoding: where it is (for messages), its file path or encoded bytes, and its label."""

    where: str
    source: str | bytes
    label: int


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    # One for every split: Pillow decodes without the GIL, and readers in several threads share the cores.
    return ThreadPoolExecutor(threads, thread_name_prefix="decode")


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """``function`` of each item, computed in ``threads`` threads (0: as many as cores), in order.

    ``function`` must not call ``in_threads`` itself: its threads would wait for each other.
    """
    threads = threads or available_cores()
    size = max(1, min(_TASK, math.ceil(len(items) / threads)))

    def task(start: int) -> list[Result]:
        return [function(item) for item in items[start : start + size]]

    results = _pool(threads).map(task, range(0, len(items), size))
    return [result for part in results for result in part]


def fit(image: Any, size: int) -> Any:
    """Resizes a PIL image so that its shorter side is ``size`` pixels and crops the center square; 0 leaves it."""
    if size == 0 or image.size == (size, size):
        return image
    from PIL import Image

    width, height = image.size
    scale = size / min(width, height)
    width, height = max(size, round(width * scale)), max(size, round(height * scale))
    left, top = (width - size) // 2, (height - size) // 2
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    return image.crop((left, top, left + size, top + size))


def draft_and_fit(image: Any, mode: str, size: int) -> Any:
    """``fit`` of a PIL image that is not decoded yet, in ``mode``."""
    if size:
        # JPEG only: decodes at 1/2, 1/4 or 1/8 of the size where that is still at least `size`.
        image.draft(None, (size, size))
    return fit(in_mode(image, mode), size)


def decode(example: Encoded, channels: int, name: str, shape: Callable[[Any, str], Any]) -> np.ndarray:
    """Decodes one image to uint8 [H, W, channels].

    Args:
      example: what to decode.
      channels: 1, 3 or 4; sets of color photographs hold some gray and some CMYK files.
      name: of the set, for messages.
      shape: from a PIL image that is not decoded yet, and a mode, to one in that mode, cropped and resized.

    Raises:
      InputError: the file cannot be read; says which.
    """
    from PIL import Image

    source = io.BytesIO(example.source) if isinstance(example.source, bytes) else example.source
    try:
        with Image.open(source) as image:
            pixels = np.asarray(shape(image, _MODES[channels]))
    except Exception as error:  # Pillow's decoders raise many types on damaged files.
        raise InputError(
            f"data.name is {name!r}, but its image {example.where} cannot be read ({error}); "
            "replace that file or remove it."
        ) from error
    return pixels.reshape(*pixels.shape[:2], channels)


def fit_gray(images: np.ndarray, size: int) -> np.ndarray:
    """Fits gray uint8 images [N, H, W, 1] to ``size``, as ``fit`` does."""
    if size == 0:
        return images
    from PIL import Image

    return np.stack([np.asarray(fit(Image.fromarray(image), size)) for image in images[..., 0]])[..., None]
