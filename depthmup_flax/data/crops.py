"""Which part of an image a model sees, when images come in many sizes: ImageNet's usual recipe, on the host.

Training draws a box (``random_box``): its area is uniform in 8 to 100 % of the image, its aspect ratio log-uniform in
3/4 to 4/3. Evaluation takes the center 224/256 of the shorter side (``center_box``). Either is resized bilinearly to a
square (``resize_box``).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10
# Evaluation resizes the shorter side to this multiple of the image size, before the center is cropped.
EVAL_RESIZE = 256 / 224

# Apart from the data order, which is drawn from (seed, epoch).
_STREAM = 0xC209

Box = tuple[float, float, float, float]


def crop_draws(seed: int, step: int, batch_size: int) -> np.ndarray:
    """What ``random_box`` needs for each place in the global batch of a step: float64 [batch_size, ATTEMPTS, 4].

    A pure function of (seed, step, place), uniform in [0, 1).
    """
    return np.random.default_rng((seed, step, _STREAM)).random((batch_size, ATTEMPTS, 4))


def random_box(draws: Sequence[Sequence[float]], width: int, height: int) -> Box:
    """(left, top, right, bottom) in whole pixels of an image of ``width`` x ``height``.

    Args:
      draws: of each attempt four numbers in [0, 1), for the area, the logarithm of the ratio width / height, and the
        place. The first attempt whose box fits counts; if none does, the box is the largest centerd one whose ratio
        is allowed.
    """
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for for_area, for_ratio, for_left, for_top in draws:
        area = (AREA[0] + (AREA[1] - AREA[0]) * for_area) * width * height
        ratio = math.exp(low + (high - low) * for_ratio)
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, top = int(for_left * (width - across + 1)), int(for_top * (height - down + 1))
            return left, top, left + across, top + down
    across, down = min(width, max(1, round(height * RATIO[1]))), min(height, max(1, round(width / RATIO[0])))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down


def center_box(width: int, height: int, size: int) -> Box:
    """The center ``size`` x ``size`` after resizing the shorter side to ``size * EVAL_RESIZE``, in source pixels."""
    side = min(width, height) * size / round(size * EVAL_RESIZE)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def resize_box(image: Any, mode: str, size: int, box: Box) -> Any:
    """The part ``box`` of a PIL image that is not decoded yet, in ``mode``, resized to ``size`` x ``size``.

    A JPEG whose box is at least twice as large as ``size`` is decoded at 1/2, 1/4 or 1/8 of its size, which is faster.
    """
    left, top, right, bottom = box
    width, height = image.size
    enough = math.ceil(width * size / (right - left)), math.ceil(height * size / (bottom - top))
    drafted = image.draft(None, enough)
    if drafted is not None:
        scale = drafted[1][2] / width
        left, top, right, bottom = (edge * scale for edge in box)
    return in_mode(image, mode).resize((size, size), _bilinear(), box=(left, top, right, bottom))


def in_mode(image: Any, mode: str) -> Any:
    """The PIL image in ``mode``; itself, where Pillow would copy."""
    return image if image.mode == mode else image.convert(mode)


def _bilinear() -> Any:
    from PIL import Image

    return Image.Resampling.BILINEAR
