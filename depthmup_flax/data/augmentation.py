"""Random image transformations on the device, with one key per example.

The paper (arXiv 2309.16620, appendix A.4) names the transformations, "horizontal flips, 10-degree rotations, affine
transformations, color jittering" for CIFAR-10 and "crops, horizontal flips" for Tiny ImageNet and ImageNet; the ranges
are torchvision's common recipe. "resized_crop" crops on the host, which has the whole image (``crops``).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from depthmup_flax.errors import InputError

MAX_ROTATION = 10.0  # degrees
MAX_SHEAR = 10.0  # degrees
SCALE_RANGE = (0.8, 1.2)
JITTER = 0.2  # brightness, contrast and saturation factors lie in 1 -+ JITTER
CROP_PADDING = 1 / 8  # of the side

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
    images = images.astype(jnp.float32) / 255
    transform = AUGMENTATIONS[name]
    if transform is None:
        return images
    if key is None:
        raise InputError(f"data.augment is {name!r}, which is random; give a PRNG key.")
    return jax.vmap(transform)(jax.random.split(key, len(images)), images)


def check_augmentation(name: str, kind: str) -> None:
    """InputError unless ``name`` is an augmentation of "images" or "text"."""
    names = ("none", "shift") if kind == "text" else tuple(AUGMENTATIONS)
    if name not in names:
        raise InputError(f"data.augment is {name!r}; use one of {', '.join(names)} for {kind}.")


def normalize(images: jax.Array, mean: jax.typing.ArrayLike, std: jax.typing.ArrayLike) -> jax.Array:
    """``(images - mean) / std`` per channel: images [..., C] on the 0..1 scale, mean and std [C]."""
    return (images - mean) / std


def random_flip(key: jax.Array, image: jax.Array) -> jax.Array:
    """Mirrors the image [H, W, C] left to right with probability 1/2."""
    return jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)


def random_crop(key: jax.Array, image: jax.Array) -> jax.Array:
    """Pads the image [H, W, C] with zeros by 1/8 of each side and crops it back at a random offset."""
    rows, columns = (max(1, round(side * CROP_PADDING)) for side in image.shape[:2])
    padded = jnp.pad(image, ((rows, rows), (columns, columns), (0, 0)))
    offset = jax.random.randint(key, (2,), 0, jnp.array([2 * rows + 1, 2 * columns + 1]))
    return jax.lax.dynamic_slice(padded, (*offset, 0), image.shape)


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
    rows, columns = jnp.moveaxis(grid @ (unrotate @ unshear / scale).T + center, -1, 0)
    return interpolate(image, rows, columns)


def interpolate(image: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """The image [H, W, C] at positions [...], bilinear, zero outside: [..., C].

    Reads all channels of a pixel at once, unlike ``jax.scipy.ndimage.map_coordinates``.
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


def random_affine(key: jax.Array, image: jax.Array) -> jax.Array:
    """``affine_warp`` of the image [H, W, C] by a random angle, shear and scale."""
    ranges = ((-MAX_ROTATION, MAX_ROTATION), (-MAX_SHEAR, MAX_SHEAR), SCALE_RANGE)
    keys = jax.random.split(key, 3)
    angle, shear, scale = (
        jax.random.uniform(k, minval=low, maxval=high) for k, (low, high) in zip(keys, ranges, strict=True)
    )
    return affine_warp(image, jnp.radians(angle), jnp.radians(shear), scale)


def color_jitter(key: jax.Array, image: jax.Array) -> jax.Array:
    """Random brightness, then contrast, then (three channels only) saturation of the image [H, W, C] in 0..1."""
    brightness, contrast, saturation = jax.random.uniform(key, (3,), minval=1 - JITTER, maxval=1 + JITTER)
    image = jnp.clip(image * brightness, 0, 1)
    image = _blend(image, _gray(image).mean(), contrast)
    return _blend(image, _gray(image), saturation) if image.shape[-1] == 3 else image


def _gray(image: jax.Array) -> jax.Array:
    return (image * jnp.array(_LUMA)).sum(-1, keepdims=True) if image.shape[-1] == 3 else image.mean(-1, keepdims=True)


def _blend(image: jax.Array, other: jax.Array, factor: jax.Array) -> jax.Array:
    return jnp.clip(factor * image + (1 - factor) * other, 0, 1)


def _cifar(key: jax.Array, image: jax.Array) -> jax.Array:
    flip_key, affine_key, color_key = jax.random.split(key, 3)
    return color_jitter(color_key, random_affine(affine_key, random_flip(flip_key, image)))


def _imagenet(key: jax.Array, image: jax.Array) -> jax.Array:
    crop_key, flip_key = jax.random.split(key)
    return random_flip(flip_key, random_crop(crop_key, image))


AUGMENTATIONS: dict[str, Callable[[jax.Array, jax.Array], jax.Array] | None] = {
    "none": None,
    "cifar": _cifar,
    "imagenet": _imagenet,
    "resized_crop": random_flip,
}
