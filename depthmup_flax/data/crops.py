"""Crops and resizing of images on the host, with Pillow.

``data.augment = "resized_crop"`` is ImageNet's usual recipe for images of many sizes: training reads a random box
(``random_box``), evaluation the center (``center_box``), and ``resize_box`` resizes it to a square. Otherwise ``fit``
resizes the shorter side and crops the center.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

AREA = (0.08, 1.0)  # of the image
RATIO = (3 / 4, 4 / 3)  # width / height
ATTEMPTS = 10
EVAL_RESIZE = 256 / 224  # evaluation resizes the shorter side to this multiple of the size, then crops the center
_STREAM = 0xC209  # separates the random numbers of crops from those of the data order, keyed by (seed, epoch)
_MOST_PIXELS = 2**26  # of a whole image that `fit` resizes: 200 MB in color
_TIFF_BITS, _TIFF_BLACK = 258, 262  # tags: bits of each sample; 1 if zero is black
_BILINEAR = 2  # PIL.Image.Resampling.BILINEAR, without importing Pillow
Box = tuple[float, float, float, float]


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
    """The part ``box`` of an image, in ``mode``, resized to ``size`` x ``size``.

    Decodes a JPEG at 1/2, 1/4 or 1/8 of its size if the box is at least that much larger than ``size``.
    """
    (left, top, right, bottom), (width, height) = box, image.size
    drafted = image.draft(None, (math.ceil(width * size / (right - left)), math.ceil(height * size / (bottom - top))))
    scale = 1 if drafted is None else round(width / drafted[1][2])
    return _convert(image, mode).resize(
        (size, size), _BILINEAR, box=(left / scale, top / scale, right / scale, bottom / scale)
    )


def fit(image: Image.Image, mode: str, size: int) -> Image.Image:
    """The image in ``mode``, its shorter side resized to ``size`` pixels and the center square cropped.

    Size 0 keeps the image's. Decodes a JPEG at 1/2, 1/4 or 1/8 of its size if that is at least ``size``.
    """
    if size:
        image.draft(None, (size, size))
    image = _convert(image, mode)
    if size == 0 or image.size == (size, size):
        return image
    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    if width * height > _MOST_PIXELS:  # such as 30000x1: resize the center alone
        side = min(image.size)
        across, down = ((length - side) / 2 for length in image.size)
        return image.resize((size, size), _BILINEAR, box=(across, down, across + side, down + side))
    return image.resize((width, height), _BILINEAR).crop((left, top, left + size, top + size))


def _convert(image: Image.Image, mode: str) -> Image.Image:
    """The image in ``mode``, without transparency; ValueError for pixels of 32 bits.

    16-bit gray becomes 8-bit by its high byte, as Pillow reads 16-bit color; its ``convert`` clips gray to 255.
    """
    if image.mode == mode:
        return image  # ``convert`` would copy it
    if _is_gray_16(image):
        from PIL import Image as images

        image = images.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F") or image.mode.startswith("I;"):
        raise ValueError(
            f"its pixels, of Pillow's mode {image.mode!r}, have no known white; convert it to 8 or 16 bits a channel"
        )
    return image if image.mode == mode else image.convert(mode)


def _is_gray_16(image: Image.Image) -> bool:
    """Whether pixels are 0..65535, from black to white."""
    if image.format == "TIFF":  # whose mode "I;16" may have 12 bits, or black at the top
        tags = image.tag_v2  # type: ignore[attr-defined]
        return image.mode.startswith("I;16") and (tags.get(_TIFF_BITS), tags.get(_TIFF_BLACK)) == ((16,), 1)
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
