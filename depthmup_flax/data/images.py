"""Encoded images to uint8 arrays on the host, with Pillow."""

import functools
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from depthmup_flax.errors import InputError

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Images per task: the hand-over to another thread takes about as long as decoding one small image.
_TASK = 8


class Encoded(NamedTuple):
    """One example before decoding: where it is (for messages), its file path or encoded bytes, and its label."""

    where: str
    source: str | bytes
    label: int


@functools.lru_cache(maxsize=1)
def _decoders() -> ThreadPoolExecutor:
    # One pool for every split: Pillow decodes without the GIL, and readers in several threads share the cores.
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="decode")


def fit(image: Any, size: int) -> Any:
    """Resizes a PIL image so that its shorter side is ``size`` pixels and crops the centre square; 0 leaves it."""
    if size == 0 or image.size == (size, size):
        return image
    from PIL import Image

    width, height = image.size
    scale = size / min(width, height)
    width, height = max(size, round(width * scale)), max(size, round(height * scale))
    left, top = (width - size) // 2, (height - size) // 2
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    return image.crop((left, top, left + size, top + size))


def decode(example: Encoded, channels: int, size: int, name: str) -> np.ndarray:
    """Decodes one image to uint8 [H, W, channels], fitted to ``size``; InputError names an unreadable file."""
    from PIL import Image

    source = io.BytesIO(example.source) if isinstance(example.source, bytes) else example.source
    try:
        with Image.open(source) as image:
            if size:
                # JPEG only: decodes at 1/2, 1/4 or 1/8 of the size where that is still at least `size`.
                image.draft(None, (size, size))
            # Sets of colour photographs hold some grey and some CMYK files.
            pixels = np.asarray(fit(image.convert(_MODES[channels]), size))
    except Exception as error:  # Pillow's decoders raise many types on damaged files.
        raise InputError(
            f"data.name is {name!r}, but its image {example.where} cannot be read ({error}); "
            "replace that file or remove it."
        ) from error
    return pixels.reshape(*pixels.shape[:2], channels)


def decode_all(examples: Sequence[Encoded], channels: int, size: int, name: str) -> list[np.ndarray]:
    """Decodes images in several threads, in order; see ``decode``."""

    def task(start: int) -> list[np.ndarray]:
        return [decode(example, channels, size, name) for example in examples[start : start + _TASK]]

    return [image for images in _decoders().map(task, range(0, len(examples), _TASK)) for image in images]


def fit_grey(images: np.ndarray, size: int) -> np.ndarray:
    """Fits grey uint8 images [N, H, W, 1] to ``size``, as ``fit`` does."""
    if size == 0:
        return images
    from PIL import Image

    return np.stack([np.asarray(fit(Image.fromarray(image), size)) for image in images[..., 0]])[..., None]
