"""``Dataset`` and ``Split``: random access to checked examples, in memory or decoded when read; sets of images."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data.augmentation import augment, normalize
from depthmup_flax.data.crops import center_box, random_box, resize_box
from depthmup_flax.data.images import Encoded, decode, draft_and_fit, in_threads
from depthmup_flax.errors import InputError

Batch = dict[str, np.ndarray]
Placement = Literal["device", "stream"]

# Streamed sets: the normalization is estimated on this many training images. On CIFAR-10 the mean is then off by 0.9 %
# of the deviation, and the deviation itself by 0.5 % (average of 200 samples; docs/input.md).
STATISTICS_SAMPLE = 2_000
# Images at a time: at 224x224 the statistics then take some 500 MB.
_CHUNK = 128
_PART = 8
# Sums of squares about the middle of the scale do not cancel.
_GREY = np.float64(127.5)


class Split(Protocol):
    """The examples of one split; indices run from 0 to ``len(split) - 1``."""

    def __len__(self) -> int:
        """The number of examples."""

    def read(self, indices: np.ndarray) -> Batch:
        """Arrays whose leading axis counts the examples; thread-safe.

        Of images ``{"image": [B, H, W, C], "label": int32 [B]}``, uint8 or float32 in 0..255; of text
        ``{"tokens": [B, W]}``, windows of unsigned integers.
        """

    def arrays(self) -> Batch:
        """The whole split in memory, in order, as ``read`` gives it."""


@dataclasses.dataclass(frozen=True)
class Dataset(abc.ABC):
    """A named set of examples, and how a batch of them becomes what a model sees and what it is to say.

    Attributes:
      name: as given to ``load`` or ``from_arrays``.
      train: training examples.
      test: held-out examples.
      num_classes: labels run from 0 to ``num_classes - 1``.
      placement: "device" when both splits are arrays in memory that the trainer puts on the device,
        "stream" when batches are to be read from ``train`` step by step.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    placement: Placement

    input_kind: ClassVar[str]
    """"image" or "tokens": the models that fit have the same."""
    unit: ClassVar[str]
    """What speed is counted in."""

    @abc.abstractmethod
    def prepare(
        self, augmentation: str, key: jax.Array | None, batch: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """A batch as ``Split.read`` gives it -> the model's inputs ``[B, ...]`` and labels int32 ``[B, ...]``.

        For use inside a jitted step. ``augmentation`` is ``data.augment``; a key of None leaves it out.
        """

    @property
    @abc.abstractmethod
    def input_spec(self) -> jax.ShapeDtypeStruct:
        """Shape and type of the prepared input of one example, with a leading axis of 1."""

    @property
    @abc.abstractmethod
    def units_per_example(self) -> int:
        """How many of ``unit`` an example holds."""

    @abc.abstractmethod
    def describe(self) -> str:
        """The examples in a few words, for the terminal: "images 8x8x1, 10 classes"."""


@dataclasses.dataclass(frozen=True)
class ImageDataset(Dataset):
    """An image classification set; see `Dataset` for the first attributes.

    Attributes:
      image_shape: (height, width, channels), the same for every image.
      mean: float32 [C], per-channel mean of the training images on a 0..1 scale.
      std: float32 [C], their standard deviation; 1 for a constant channel.
    """

    image_shape: tuple[int, int, int]
    mean: np.ndarray
    std: np.ndarray

    input_kind: ClassVar[str] = "image"
    unit: ClassVar[str] = "images"

    def prepare(
        self, augmentation: str, key: jax.Array | None, batch: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Augmented and normalized images, float32 ``[B, H, W, C]``, and their classes ``[B]``."""
        images = augment("none" if key is None else augmentation, key, batch["image"])
        return normalize(images, self.mean, self.std), batch["label"]

    @property
    def input_spec(self) -> jax.ShapeDtypeStruct:
        """float32 ``[1, H, W, C]``."""
        return jax.ShapeDtypeStruct((1, *self.image_shape), jnp.float32)

    @property
    def units_per_example(self) -> int:
        """One image."""
        return 1

    def describe(self) -> str:
        """See ``Dataset.describe``."""
        return f"images {_pixels(self.image_shape)}, {self.num_classes} classes"


@dataclasses.dataclass(frozen=True)
class ArraySplit:
    """A split in memory: ``fields`` are arrays with one leading axis, as ``Split.read`` gives them."""

    fields: Batch

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def read(self, indices: np.ndarray) -> Batch:
        """See ``Split.read``."""
        return {name: array[indices] for name, array in self.fields.items()}

    def arrays(self) -> Batch:
        """See ``Split.arrays``; no copy is made."""
        return dict(self.fields)

    def take(self, order: np.ndarray) -> "ArraySplit":
        """The examples ``order``, in that order."""
        return ArraySplit(self.read(order))


@dataclasses.dataclass(frozen=True)
class EncodedSplit:
    """A split of encoded images, decoded when read.

    Attributes:
      name: the data set, for messages.
      fetch: positions in the source -> their encoded examples.
      order: int64 [N], the source position of each example.
      num_classes: labels must lie in [0, num_classes).
      image_shape: the shape every decoded image must have.
      image_size: ``data.image_size``.
      first: the place of the image that ``image_shape`` was taken from, for messages.
      resized_crop: training batches are random parts of the images (``crops``), evaluation the center 224/256.
      threads: that decode; 0 is one for each core. A process shares them between its splits.
    """

    name: str
    fetch: Callable[[list[int]], list[Encoded]]
    order: np.ndarray
    num_classes: int
    image_shape: tuple[int, int, int]
    image_size: int
    first: str
    resized_crop: bool = False
    threads: int = 0

    def __len__(self) -> int:
        return len(self.order)

    def read(self, indices: np.ndarray, draws: np.ndarray | None = None) -> Batch:
        """See ``Split.read``; InputError names an unreadable image, an odd size or a bad label.

        ``draws`` are those of ``crops.crop_draws`` for these images [B, ATTEMPTS, 4]: each is cropped at random.
        """
        examples = self.fetch(self.order[indices].tolist()) if len(indices) else []
        images = np.empty((len(examples), *self.image_shape), np.uint8)

        def place(i: int) -> None:
            shape = functools.partial(self._shape, draws=None if draws is None else draws[i].tolist())
            pixels = decode(examples[i], self.image_shape[-1], self.name, shape)
            self._check(examples[i], pixels.shape)
            images[i] = pixels

        in_threads(place, range(len(examples)), self.threads)
        return {"image": images, "label": np.array([example.label for example in examples], np.int32)}

    def arrays(self) -> Batch:
        """See ``Split.arrays``."""
        images = np.empty((len(self), *self.image_shape), np.uint8)
        labels = np.empty(len(self), np.int32)
        for start in range(0, len(self), _CHUNK):
            indices = np.arange(start, min(start + _CHUNK, len(self)))
            batch = self.read(indices)
            images[indices], labels[indices] = batch["image"], batch["label"]
        return {"image": images, "label": labels}

    def take(self, order: np.ndarray) -> "EncodedSplit":
        """The examples ``order``, in that order."""
        return dataclasses.replace(self, order=self.order[order])

    def _shape(self, image: Any, mode: str, draws: list[list[float]] | None) -> Any:
        """Crops and resizes a PIL image that is not decoded yet."""
        if not self.resized_crop:
            return draft_and_fit(image, mode, self.image_size)
        width, height = image.size
        box = center_box(width, height, self.image_size) if draws is None else random_box(draws, width, height)
        return resize_box(image, mode, self.image_size, box)

    def _check(self, example: Encoded, shape: tuple[int, ...]) -> None:
        if shape != self.image_shape:
            raise InputError(
                f"data.image_size is {self.image_size}, which needs images of one size, but {self.first} is "
                f"{_pixels(self.image_shape)} and {example.where} is {_pixels(shape)}; "
                f"set data.image_size (say {min(self.image_shape[:2])}) to resize and crop every image."
            )
        if not 0 <= example.label < self.num_classes:
            raise InputError(
                f"data.name is {self.name!r}, but the label of {example.where} is {example.label}, outside "
                f"0..{self.num_classes - 1}; correct or remove that example."
            )


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
      train_images: [N, H, W, C], uint8, or floating point on the same 0..255 scale.
      train_labels: integers [N] in [0, num_classes).
      test_images: [M, H, W, C].
      test_labels: integers [M].
      num_classes: by default the largest label plus one.
      name: what messages call the set.

    Raises:
      InputError: lengths differ, an array is empty or of the wrong rank or type, a value is NaN or infinite, a label
        is out of range, or the two splits' image shapes differ.
    """
    arrays = {"train": (train_images, train_labels), "test": (test_images, test_labels)}
    checked = {split: _checked(name, split, *pair) for split, pair in arrays.items()}
    if num_classes is None:
        num_classes = 1 + max(int(labels.max()) for _, labels in checked.values())
    for split, (_, labels) in checked.items():
        _check_range(name, split, labels, num_classes)
    train, test = (
        ArraySplit({"image": images, "label": labels.astype(np.int32)}) for images, labels in checked.values()
    )
    shape, test_shape = (images.shape[1:] for images, _ in checked.values())
    if shape != test_shape:
        raise InputError(
            f"data set {name!r}: train images are {_pixels(shape)} but test images are {_pixels(test_shape)}; "
            "bring both to one shape."
        )
    mean, std = channel_statistics(train)
    return ImageDataset(name, train, test, num_classes, "device", image_shape=shape, mean=mean, std=std)


def channel_statistics(train: Split) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel, float32 [C], on a 0..1 scale.

    Exact for arrays in memory, else from a fixed sample of ``STATISTICS_SAMPLE`` images. The deviation of a constant
    channel is given as 1, so that normalizing it yields zeros rather than NaN.
    """
    indices = np.arange(len(train))
    if not isinstance(train, ArraySplit) and len(train) > STATISTICS_SAMPLE:
        indices = np.sort(np.random.default_rng(0).choice(len(train), STATISTICS_SAMPLE, replace=False))
    threads = train.threads if isinstance(train, EncodedSplit) else 0
    sums, count = np.zeros((2, 1)), 0
    for start in range(0, len(indices), _CHUNK):
        images = train.read(indices[start : start + _CHUNK])["image"]
        parts = np.array_split(images, max(1, len(images) // _PART))
        sums = sums + sum(in_threads(_sums, parts, threads))
        count += images[..., 0].size
    mean, square = sums / count
    std = np.sqrt(np.maximum(square - mean**2, 0)) / 255
    return np.asarray((mean + _GREY) / 255, np.float32), np.where(std < 1e-6, 1.0, std).astype(np.float32)


def _sums(images: np.ndarray) -> np.ndarray:
    """The sums of pixel - 127.5 and of its square, per channel: float64 [2, C]; exact for bytes, so in any order."""
    *_, width, channels = images.shape
    rows = images.reshape(-1, width * channels) - _GREY
    columns = np.stack([rows.sum(0), np.einsum("ij,ij->j", rows, rows)])
    return columns.reshape(2, width, channels).sum(1)


def _checked(name: str, split: str, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One split's images, as uint8 or float32, and labels, after every check that needs no other split."""
    images, labels = np.asarray(images), np.asarray(labels)
    where = f"data set {name!r}, {split} split"
    if images.ndim != 4 or labels.ndim != 1 or len(images) != len(labels) or images.size == 0:
        raise InputError(
            f"{where}: images are {list(images.shape)} and labels {list(labels.shape)}; "
            "give images [N, H, W, C] and labels [N] with the same N > 0."
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{where}: labels are {labels.dtype}; give integers from 0.")
    if images.dtype != np.uint8:
        if not np.issubdtype(images.dtype, np.floating):
            raise InputError(f"{where}: images are {images.dtype}; give uint8, or float32 on the same 0..255 scale.")
        _check_finite(where, images)
        images = images.astype(np.float32)
    return images, labels


def _check_finite(where: str, images: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(images).all(axis=(1, 2, 3)))
    if bad.size:
        raise InputError(
            f"{where}: {bad.size} of {len(images)} images hold NaN or infinite values, the first at index {bad[0]}; "
            "correct or remove them."
        )


def _check_range(name: str, split: str, labels: np.ndarray, num_classes: int) -> None:
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if bad.size:
        raise InputError(
            f"data set {name!r}, {split} split: the label at index {bad[0]} is {labels[bad[0]]}, outside "
            f"0..{num_classes - 1}; correct the labels or num_classes."
        )


def _pixels(shape: tuple[int, ...]) -> str:
    return "x".join(str(side) for side in shape)
