"""Random image transformations on the device, with one key per example.

"resized_crop" crops on the host, which has the whole image (``crops``).

References:
  arXiv 2309.16620, appendix A.4: the transformations, "horizontal flips, 10-degree rotations, affine transformations,
  color jittering" for CIFAR-10 and "crops, horizontal flips" for Tiny ImageNet and ImageNet. The ranges are
  torchvision's common recipe.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates

MAX_ROTATION = 10.0  # degrees
MAX_SHEAR = 10.0  # degrees
SCALE_RANGE = (0.8, 1.2)
MIXUP_ALPHA = 0.2  # of the Beta distribution (arXiv:1710.09412, for ImageNet)
CUTMIX_ALPHA = 1.0  # (arXiv:1905.04899)
JITTER = 0.2  # brightness, contrast and saturation factors lie in 1 -+ JITTER
CROP_PADDING = 1 / 8  # of the side

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601


def augment(name: str, key: jax.Array | None, images: jax.Array) -> jax.Array:
    """Transforms each image at random; for use inside a jitted step.

    Args:
      name: "none", "cifar", "imagenet" or "resized_crop" (only flips: the host has cropped).
      key: a PRNG key; example i uses the i-th of ``jax.random.split(key, B)``. ``None`` is enough for "none".
      images: [B, H, W, C], uint8 or floating point, 0..255. The result is float32 in 0..1, not normalized.
    """
    transform = AUGMENTATIONS[name]
    if transform is None:
        return _scaled(images)
    assert key is not None  # "none" alone does without
    return jax.vmap(transform)(jax.random.split(key, len(images)), images)


def mixed(
    name: str, key: jax.Array, images: jax.Array, labels: jax.Array, num_classes: int
) -> tuple[jax.Array, jax.Array]:
    """Each image and label with a share of the next one's; the share is one for the batch.

    Args:
      name: "mixup", a weighted mean of both images (arXiv:1710.09412), or "cutmix", a box of the other one
        (arXiv:1905.04899).
      key: a PRNG key.
      images: [B, H, W, C].
      labels: integers [B].
      num_classes: K.

    Returns:
      Images, and probabilities of the classes, float32 [B, K].
    """
    share_key, box_key = jax.random.split(key)
    next_one, classes = jnp.roll(images, 1, axis=0), jax.nn.one_hot(labels, num_classes)
    alpha = MIXUP_ALPHA if name == "mixup" else CUTMIX_ALPHA
    own = jax.random.beta(share_key, alpha, alpha)
    if name == "mixup":
        images = own * images + (1 - own) * next_one
    else:
        height, width = images.shape[1:3]
        center = jax.random.uniform(box_key, (2,))
        inside = lambda at, side: jnp.abs(jnp.arange(side) + 0.5 - at * side) < side * jnp.sqrt(1 - own) / 2
        box_HxW = inside(center[0], height)[:, None] & inside(center[1], width)[None, :]
        images, own = jnp.where(box_HxW[..., None], next_one, images), 1 - box_HxW.mean()
    return images, own * classes + (1 - own) * jnp.roll(classes, 1, axis=0)


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

    # For TPUs: a gather wastes most of their lanes, and takes 25 times as long at 224x224 pixels.
    def by_products(image: jax.Array, offset: jax.Array) -> jax.Array:
        # Exact, because each sum has one term: bfloat16 holds bytes, other values need float32.
        dtype, precision = (jnp.bfloat16, None) if image.dtype == jnp.uint8 else (image.dtype, "highest")
        rows_HxH, columns_WxW = (
            jax.nn.one_hot(start + jnp.arange(side), side, dtype=dtype)
            for start, side in zip(offset - jnp.array([rows, columns]), image.shape[:2], strict=True)
        )
        shifted = jnp.einsum("rh,hwc,sw->rsc", rows_HxH, image.astype(dtype), columns_WxW, precision=precision)
        return shifted.astype(image.dtype)

    return jax.lax.platform_dependent(image, offset, tpu=by_products, default=by_slice)


def affine_warp(
    image: jax.Array, angle: jax.typing.ArrayLike, shear: jax.typing.ArrayLike, scale: jax.typing.ArrayLike
) -> jax.Array:
    """Rotates, shears, then scales the image [H, W, C] about its center, zero outside, in one bilinear interpolation.

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
        positions = jnp.moveaxis(grid @ (unrotate @ unshear / scale).T + center, -1, 0)
    return jax.vmap(lambda channel: map_coordinates(channel, list(positions), order=1), -1, -1)(image)


def color_jitter(key: jax.Array, image: jax.Array) -> jax.Array:
    """Random brightness, then contrast, then (three channels only) saturation of the image [H, W, C] in 0..1."""
    brightness, contrast, saturation = jax.random.uniform(key, (3,), minval=1 - JITTER, maxval=1 + JITTER)
    image = jnp.clip(image * brightness, 0, 1)
    image = _blend(image, _gray(image).mean(), contrast)
    return _blend(image, _gray(image), saturation) if image.shape[-1] == 3 else image


def _scaled(image: jax.Array) -> jax.Array:
    return image.astype(jnp.float32) / 255


def _gray(image: jax.Array) -> jax.Array:
    return (image * jnp.array(_LUMA)).sum(-1, keepdims=True) if image.shape[-1] == 3 else image.mean(-1, keepdims=True)


def _blend(image: jax.Array, other: jax.Array, factor: jax.Array) -> jax.Array:
    return jnp.clip(factor * image + (1 - factor) * other, 0, 1)


def _cifar(key: jax.Array, image: jax.Array) -> jax.Array:
    flip_key, affine_key, color_key = jax.random.split(key, 3)
    ranges = ((-MAX_ROTATION, MAX_ROTATION), (-MAX_SHEAR, MAX_SHEAR), SCALE_RANGE)
    angle, shear, scale = (
        jax.random.uniform(k, minval=low, maxval=high)
        for k, (low, high) in zip(jax.random.split(affine_key, 3), ranges, strict=True)
    )
    image = _scaled(random_flip(flip_key, image))
    return color_jitter(color_key, affine_warp(image, jnp.radians(angle), jnp.radians(shear), scale))


def _imagenet(key: jax.Array, image: jax.Array) -> jax.Array:
    crop_key, flip_key = jax.random.split(key)
    return _scaled(random_flip(flip_key, random_crop(crop_key, image)))


AUGMENTATIONS: dict[str, Callable[[jax.Array, jax.Array], jax.Array] | None] = {
    "none": None,
    "cifar": _cifar,
    "imagenet": _imagenet,
    "resized_crop": lambda key, image: _scaled(random_flip(key, image)),
}
# Those of ``config.data``, whose images may be mixed afterwards.
IMAGE_AUGMENTATIONS = tuple(f"{name}{mix}" for name in AUGMENTATIONS for mix in ("", "+mixup", "+cutmix"))
