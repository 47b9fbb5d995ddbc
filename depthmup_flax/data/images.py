"""Sets of images: from arrays to a checked ``ImageDataset``, and the statistics that normalize it."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data.augmentation import augment, normalize
from depthmup_flax.data.dataset import ArraySplit, Dataset, Split
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Batch

# The normalization of streamed sets is estimated from this many images; docs/input.md has its error.
STATISTICS_SAMPLE = 2_000
_CHUNK = 128  # images that are summed at a time: 500 MB for the statistics of 224x224 pixels
_PART = 8  # and at once
_GRAY = np.float64(127.5)  # sums about the middle of the scale lose no digits


@dataclasses.dataclass(frozen=True)
class ImageDataset(Dataset):
    """An image classification set."""

    image_shape: tuple[int, int, int]  # height, width, channels
    mean: np.ndarray  # float32 [C], per-channel mean of the training images on a 0..1 scale
    std: np.ndarray  # float32 [C], their standard deviation; 1 for a constant channel
    class_names: tuple[str, ...] = ()  # by label; empty if the set does not name its classes

    input_kind: ClassVar[str] = "image"
    unit: ClassVar[str] = "images"

    def prepare(self, augmentation: str, key: jax.Array | None, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Augmented and normalized images, float32 ``[B, H, W, C]``, and their classes ``[B]``."""
        images = augment("none" if key is None else augmentation, key, batch["image"])
        return normalize(images, self.mean, self.std), batch["label"]

    @property
    def input_spec(self) -> jax.ShapeDtypeStruct:
        """float32 ``[1, H, W, C]``."""
        return jax.ShapeDtypeStruct((1, *self.image_shape), jnp.float32)

    def describe(self) -> str:
        """See ``Dataset.describe``."""
        return f"images {'x'.join(map(str, self.image_shape))}, {self.num_classes} classes"


def from_arrays(
    train_images: np.ndarray,
    train_labels: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
    num_classes: int | None = None,
    name: str = "arrays",
) -> ImageDataset:
    """An ``ImageDataset`` from arrays in memory.

    Args:
      train_images, test_images: [N, H, W, C], uint8 or floating point on the same 0..255 scale.
      train_labels, test_labels: integers [N] in [0, num_classes).
      num_classes: by default the largest label plus one.
      name: for messages.
    """
    if num_classes is None:
        num_classes = 1 + int(max(np.max(train_labels), np.max(test_labels)))
    train, test = (
        _checked_split(f"data set {name!r}, {which} split", images, labels, num_classes)
        for which, images, labels in (("train", train_images, train_labels), ("test", test_images, test_labels))
    )
    shape, test_shape = (split.fields["image"].shape[1:] for split in (train, test))
    if shape != test_shape:
        raise InputError(f"data set {name!r}: train images are {shape}, and test images are {test_shape}. Resize them.")
    return ImageDataset(name, train, test, num_classes, "device", shape, *channel_statistics(train))


def _checked_split(where: str, images: np.ndarray, labels: np.ndarray, num_classes: int) -> ArraySplit:
    """Images as uint8 or float32 and labels as int32."""
    images, labels = np.asarray(images), np.asarray(labels)
    if images.ndim != 4 or labels.shape != images.shape[:1] or not images.size:
        shapes = f"images are {list(images.shape)} and labels {list(labels.shape)}"
        raise InputError(f"{where}: {shapes}. Give images [N, H, W, C] and labels [N] with the same N > 0.")
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= num_classes:
        raise InputError(f"{where}: labels are {labels.dtype}. Give integers in 0..{num_classes - 1}.")
    is_bytes = images.dtype == np.uint8
    if not is_bytes and not (np.issubdtype(images.dtype, np.floating) and np.isfinite(images).all()):
        raise InputError(f"{where}: images are {images.dtype}. Give uint8, or finite floats in 0..255.")
    images = images if is_bytes else images.astype(np.float32)
    return ArraySplit({"image": images, "label": labels.astype(np.int32)})


def channel_statistics(train: Split) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel, float32 [C], on a 0..1 scale; 1 for the deviation of a constant channel.

    Exact for arrays in memory, else from a fixed sample of ``STATISTICS_SAMPLE`` images.
    """
    indices = np.arange(len(train))
    if not isinstance(train, ArraySplit) and len(train) > STATISTICS_SAMPLE:
        indices = np.sort(np.random.default_rng(0).choice(len(train), STATISTICS_SAMPLE, replace=False))
    sums, count = np.zeros((2, 1)), 0
    for start in range(0, len(indices), _CHUNK):
        images = train.read(indices[start : start + _CHUNK])["image"]
        for part in np.array_split(images, max(1, len(images) // _PART)):
            # Of pixel - 127.5 and of its square, per channel, in float64: exact for bytes.
            *_, width, channels = part.shape
            rows = part.reshape(-1, width * channels) - _GRAY
            columns = np.stack([rows.sum(0), np.einsum("ij,ij->j", rows, rows)])
            sums = sums + columns.reshape(2, width, channels).sum(1)
        count += images[..., 0].size
    mean, square = sums / count
    std = np.sqrt(np.maximum(square - mean**2, 0)) / 255
    return np.asarray((mean + _GRAY) / 255, np.float32), np.where(std < 1e-6, 1.0, std).astype(np.float32)
