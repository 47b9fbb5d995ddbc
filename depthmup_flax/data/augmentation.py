"""Random image transformations on the device, with one key per example.

Programs for a TPU crop and interpolate by matrix products, because gathers and arrays with three channels last waste
most of its lanes. The values are those of the other platforms up to the rounding of float32.

The paper (arXiv 2309.16620, appendix A.4) names the transformations, "horizontal flips, 10-degree rotations, affine
transformations, color jittering" for CIFAR-10 and "crops, horizontal flips" for Tiny ImageNet and ImageNet; the ranges
are torchvision's common recipe. "resized_crop" crops on the host, which has the whole image (``crops``).
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.util.errors import InputError, did_you_mean

MAX_ROTATION = 10.0  # degrees
MAX_SHEAR = 10.0  # degrees
SCALE_RANGE = (0.8, 1.2)
JITTER = 0.2  # brightness, contrast and saturation factors lie in 1 -+ JITTER
CROP_PADDING = 1 / 8  # of the side
MOST_PRODUCT_POSITIONS = 96 * 96  # the work of products grows with the square of the number of pixels

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601


def augment(name: str, key: jax.Array | None, images: jax.Array) -> jax.Array:
    """Transforms each image at random; for use inside a jitted step.

    Args:
      name: "none", "cifar", "imagenet" or "resized_crop" (only flips: the host has cropped).
      key: a PRNG key; example i uses the i-th of ``jax.random.split(key, B)``, whatever the other examples and the
        sharding. "none" needs none.
      images: [B, H, W, C], uint8 or floating point, 0..255. The result is float32 in 0..1, not normalized.

    Raises:
      InputError: an unknown name, or no key for a random transformation.
    """
    check_augmentation(name, "images")
    transform = AUGMENTATIONS[name]
    if transform is None:
        return _scaled(images)
    if key is None:
        raise InputError(f"data.augment is {name!r}: it is random. Give a PRNG key.")
    return jax.vmap(transform)(jax.random.split(key, len(images)), images)


def check_augmentation(name: str, kind: str) -> None:
    """InputError unless ``name`` is an augmentation of "images" or "text"."""
    names = ("none", "shift") if kind == "text" else tuple(AUGMENTATIONS)
    if name not in names:
        raise InputError(f"data.augment is {name!r}: {did_you_mean(name, names)}")


def normalize(images: jax.Array, mean: jax.typing.ArrayLike, std: jax.typing.ArrayLike) -> jax.Array:
    """``(images - mean) / std`` per channel: images [..., C] on the 0..1 scale, mean and std [C]."""
    return (images - mean) / std


def random_flip(key: jax.Array, image: jax.Array) -> jax.Array:
    """Mirrors the image [H, W, C] left to right with probability 1/2."""
    return jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)


def random_crop(key: jax.Array, image: jax.Array) -> jax.Array:
    """Pads the image [H, W, C] with zeros by 1/8 of each side and crops it back at a random offset."""
    rows, columns = (max(1, round(side * CROP_PADDING)) for side in image.shape[:2])
    offset = jax.random.randint(key, (2,), 0, jnp.array([2 * rows + 1, 2 * columns + 1]))

    def by_slice(image: jax.Array, offset: jax.Array) -> jax.Array:
        padded = jnp.pad(image, ((rows, rows), (columns, columns), (0, 0)))
        return jax.lax.dynamic_slice(padded, (*offset, 0), image.shape)

    def by_products(image: jax.Array, offset: jax.Array) -> jax.Array:
        dtype, precision = _exact(image)  # as each sum has one term
        rows_HxH, columns_WxW = (
            jax.nn.one_hot(start + jnp.arange(side), side, dtype=dtype)
            for start, side in zip(offset - jnp.array([rows, columns]), image.shape[:2], strict=True)
        )
        shifted = jnp.einsum("rh,hwc,sw->rsc", rows_HxH, image.astype(dtype), columns_WxW, precision=precision)
        return shifted.astype(image.dtype)

    return jax.lax.platform_dependent(image, offset, tpu=by_products, default=by_slice)


def _exact(image: jax.Array) -> tuple[jax.typing.DTypeLike, str | None]:
    """Type and precision of exact products with one-hot matrices: bfloat16 holds bytes, other values need float32."""
    return (jnp.bfloat16, None) if image.dtype == jnp.uint8 else (image.dtype, "highest")


def affine_warp(
    image: jax.Array, angle: jax.typing.ArrayLike, shear: jax.typing.ArrayLike, scale: jax.typing.ArrayLike
) -> jax.Array:
    """Rotates, shears, then scales the image [H, W, C], zero outside, about its center, in one bilinear interpolation.

    Args:
      angle: rotation in radians, counter-clockwise as displayed.
      shear: horizontal shear angle in radians: a point y below the center moves right by y tan(shear).
      scale: magnification.
    """
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    # From an output position (row, column) about the center to the input position: the inverse steps, last one first.
    unshear = jnp.array([[1.0, 0.0], [-jnp.tan(shear), 1.0]])
    unrotate = jnp.array([[cos, sin], [-sin, cos]])
    center = (jnp.array(image.shape[:2]) - 1) / 2
    grid = jnp.stack(jnp.indices(image.shape[:2]), axis=-1) - center
    with jax.default_matmul_precision("highest"):  # bfloat16 moves a position by up to 0.04 pixels
        rows, columns = jnp.moveaxis(grid @ (unrotate @ unshear / scale).T + center, -1, 0)
    return interpolate(image, rows, columns)


def interpolate(image: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """The image [H, W, C] at positions [...], bilinear, zero outside: [..., C].

    It reads all channels of a pixel at once, unlike ``jax.scipy.ndimage.map_coordinates``.
    """
    height, width, channels = image.shape
    top, left = jnp.floor(rows), jnp.floor(columns)
    total = jnp.zeros((*rows.shape, channels), image.dtype)
    for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        weight = jnp.where(inside, (1 - jnp.abs(rows - row)) * (1 - jnp.abs(columns - column)), 0)
        pixel = image.at[row.astype(int), column.astype(int)].get(mode="clip")
        total += weight[..., None] * pixel
    return total


def _flip_and_warp_by_gathering(
    image: jax.Array, flip: jax.Array, angle: jax.Array, shear: jax.Array, scale: jax.Array
) -> jax.Array:
    """``affine_warp`` of the image in 0..1, mirrored first if ``flip``; the ranges above bound the other arguments."""
    return affine_warp(_scaled(jnp.where(flip, image[:, ::-1], image)), angle, shear, scale)


def _flip_and_warp_by_products(
    image: jax.Array, flip: jax.Array, angle: jax.Array, shear: jax.Array, scale: jax.Array
) -> jax.Array:
    height, width, _ = image.shape
    # The positions of affine_warp, without its small products: each takes as long as an operation on all images.
    row, column = jnp.divmod(jnp.arange(height * width), width)
    row, column = row - (height - 1) / 2, column - (width - 1) / 2
    cos, sin, tan = jnp.cos(angle), jnp.sin(angle), jnp.tan(shear)
    rows = (cos - sin * tan) / scale * row + sin / scale * column + (height - 1) / 2
    columns = (-sin - cos * tan) / scale * row + cos / scale * column + (width - 1) / 2
    columns = jnp.where(flip, width - 1 - columns, columns)

    # Each band of the output needs few rows of the input. Copies by a one-hot product, which is exact, take less time
    # on a TPU than slices.
    first_row_Q, size = _bands(height, width)
    dtype, precision = _exact(image)
    one_hot_QxNxH = jax.nn.one_hot(first_row_Q[:, None] + np.arange(size), height, dtype=dtype)
    bands_QxNxWxC = jnp.einsum("qnh,hwc->qnwc", one_hot_QxNxH, image.astype(dtype), precision=precision)
    rows_QxP, columns_QxP = (positions.reshape(len(first_row_Q), -1) for positions in (rows, columns))
    warped_QxPxC = jax.vmap(_interpolate_by_products)(bands_QxNxWxC, rows_QxP - first_row_Q[:, None], columns_QxP)
    # As wide as what gathering returns, which computes in the type of the positions.
    return _scaled(warped_QxPxC.reshape(image.shape)).astype(jnp.result_type(jnp.float32, scale))


def _bands(height: int, width: int) -> tuple[np.ndarray, int]:
    """For each band of rows of a random warp's output, the first row of the input that it may need; and how many.

    A band has 128 pixels, as many as a TPU has lanes, if the sides allow.
    """
    rows = max(1, 128 // width)
    rows = rows if height % rows == 0 else height
    # The input's row is (row cos(angle + shear) / cos(shear) + column sin(angle)) / scale, about the center.
    angle, shear = math.radians(MAX_ROTATION), math.radians(MAX_SHEAR)
    slopes = math.cos(angle + shear) / math.cos(shear) / SCALE_RANGE[1], 1 / math.cos(shear) / SCALE_RANGE[0]
    center, across = (height - 1) / 2, math.sin(angle) / SCALE_RANGE[0] * (width - 1) / 2
    top_Q = np.arange(0, height, rows) - center
    bottom_Q = top_Q + rows - 1
    first_row_Q = np.floor(np.minimum(*(slope * top_Q for slope in slopes)) - across + center).clip(0)
    last_row_Q = np.ceil(np.maximum(*(slope * bottom_Q for slope in slopes)) + across + center).clip(max=height - 1)
    needed = int((last_row_Q - first_row_Q).max()) + 1
    size = min(height, -(-needed // 8) * 8)  # a TPU pads to 8 rows
    return np.minimum(first_row_Q, height - size).astype(int), size


def _interpolate_by_products(image: jax.Array, rows_P: jax.Array, columns_P: jax.Array) -> jax.Array:
    """``interpolate``: sums all pixels times ``max(0, 1 - |row - h|) max(0, 1 - |column - w|)``; four are not zero."""
    height, width, _ = image.shape
    hat = lambda positions_P, size: jnp.maximum(0, 1 - jnp.abs(positions_P - jnp.arange(size)[:, None]))
    rows_HxP, columns_WxP = hat(rows_P, height), hat(columns_P, width)
    # Bytes take half the passes of other values, as bfloat16 holds them.
    product_CxHxP = jnp.einsum("hwc,wp->chp", image.astype(jnp.float32), columns_WxP, precision="highest")
    # The sum over rows. By the TPU compiler's estimates, a window that is one column is faster than a reduction.
    window = (1, height, 1)
    return jax.lax.reduce_window(product_CxHxP * rows_HxP, 0.0, jax.lax.add, window, window, "valid")[:, 0].T


def color_jitter(key: jax.Array, image: jax.Array) -> jax.Array:
    """Random brightness, then contrast, then (three channels only) saturation of the image [H, W, C] in 0..1."""
    brightness, contrast, saturation = jax.random.uniform(key, (3,), minval=1 - JITTER, maxval=1 + JITTER)
    image = jnp.clip(image * brightness, 0, 1)
    image = _blend(image, _gray(image).mean(), contrast)
    return _blend(image, _gray(image), saturation) if image.shape[-1] == 3 else image


def _scaled(image: jax.Array) -> jax.Array:
    """0..255 to float32 in 0..1."""
    return image.astype(jnp.float32) / 255


def _gray(image: jax.Array) -> jax.Array:
    return (image * jnp.array(_LUMA)).sum(-1, keepdims=True) if image.shape[-1] == 3 else image.mean(-1, keepdims=True)


def _blend(image: jax.Array, other: jax.Array, factor: jax.Array) -> jax.Array:
    return jnp.clip(factor * image + (1 - factor) * other, 0, 1)


def _keys(key: jax.Array) -> list[jax.Array]:
    """``jax.random.split(key, 3)``, for threefry keys; with fewer operations on a TPU, as no array holds all three."""
    return [jax.random.fold_in(key, i) for i in range(3)]


def _cifar(key: jax.Array, image: jax.Array) -> jax.Array:
    flip_key, affine_key, color_key = _keys(key)
    ranges = ((-MAX_ROTATION, MAX_ROTATION), (-MAX_SHEAR, MAX_SHEAR), SCALE_RANGE)
    angle, shear, scale = (
        jax.random.uniform(k, minval=low, maxval=high) for k, (low, high) in zip(_keys(affine_key), ranges, strict=True)
    )
    small = image.shape[0] * image.shape[1] <= MOST_PRODUCT_POSITIONS
    warped = jax.lax.platform_dependent(
        *(image, jax.random.bernoulli(flip_key), jnp.radians(angle), jnp.radians(shear), scale),
        tpu=_flip_and_warp_by_products if small else _flip_and_warp_by_gathering,
        default=_flip_and_warp_by_gathering,
    )
    return color_jitter(color_key, warped)


def _imagenet(key: jax.Array, image: jax.Array) -> jax.Array:
    crop_key, flip_key = jax.random.split(key)
    return _scaled(random_flip(flip_key, random_crop(crop_key, image)))


AUGMENTATIONS: dict[str, Callable[[jax.Array, jax.Array], jax.Array] | None] = {
    "none": None,
    "cifar": _cifar,
    "imagenet": _imagenet,
    "resized_crop": lambda key, image: _scaled(random_flip(key, image)),
}
