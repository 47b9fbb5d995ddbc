"""Crops and resizing of images on the host, with Pillow.

With ``data.augment = "resized_crop"``, ImageNet's usual recipe for images of many sizes: training reads a random box
(``random_box``), evaluation the center (``center_box``), and ``resize_box`` makes a square of it. Otherwise ``fit``
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

_BILINEAR = 2  # PIL.Image.Resampling.BILINEAR; Pillow is imported only where images are read
Box = tuple[float, float, float, float]


def crop_draws(seed: int, step: int, batch_size: int) -> np.ndarray:
    """For ``random_box``, by (seed, step, place in the global batch): float64 [batch_size, ATTEMPTS, 4] in [0, 1)."""
    return np.random.default_rng((seed, step, _STREAM)).random((batch_size, ATTEMPTS, 4))


def random_box(draws: Sequence[Sequence[float]], width: int, height: int) -> Box:
    """A random box (left, top, right, bottom), in whole pixels of an image of ``width`` x ``height``.

    The area is uniform in ``AREA``, the aspect ratio log-uniform in ``RATIO``. ``draws`` are four numbers in [0, 1) for
    each attempt: area, logarithm of the ratio, left, top. The first box that fits is used; if none fits, the largest
    centered box of an allowed ratio.
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
    """The part ``box`` of an image that is not decoded yet, in ``mode``, resized to ``size`` x ``size``.

    Decodes a JPEG at 1/2, 1/4 or 1/8 of its size if the box is at least that much larger than ``size``.
    """
    left, top, right, bottom = box
    width, height = image.size
    drafted = image.draft(None, (math.ceil(width * size / (right - left)), math.ceil(height * size / (bottom - top))))
    if drafted is not None:
        scale = drafted[1][2] / width
        left, top, right, bottom = (edge * scale for edge in box)
    return _convert(image, mode).resize((size, size), _BILINEAR, box=(left, top, right, bottom))


def fit(image: Image.Image, mode: str, size: int) -> Image.Image:
    """The image in ``mode``, its shorter side resized to ``size`` pixels and the center square cropped; 0 leaves it.

    Decodes a JPEG that is not decoded yet at 1/2, 1/4 or 1/8 of its size if that is at least ``size``.
    """
    if size:
        image.draft(None, (size, size))
    image = _convert(image, mode)
    if size == 0 or image.size == (size, size):
        return image
    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), _BILINEAR).crop((left, top, left + size, top + size))


def _convert(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)  # which copies
