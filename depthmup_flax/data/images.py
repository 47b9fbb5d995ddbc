"""Sets of images: scikit-learn's digits, synthetic templates, arrays, folders of files, TensorFlow Datasets."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data.augmentation import augment, mixed, normalize
from depthmup_flax.data.dataset import ArraySplit, DataConfig, Dataset, Split, checksum_of_texts, chosen, placement
from depthmup_flax.data.image_files import SUFFIXES, Encoded, ImageFiles, decode, fit
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.imports import installs, require
from depthmup_flax.util.types import Batch

# Streamed sets are normalized by the statistics of this many images: benchmarks/notes.md has the error.
STATISTICS_SAMPLE = 2_000
_CHUNK = 16  # images that are summed at a time: 20 MB for 224x224 pixels
_GRAY = np.float64(127.5)  # sums about the middle of the scale lose no digits
_DIGITS = tuple("0123456789")
Files = list[tuple[str, int]]  # paths and labels


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
        """Normalized images, float32 ``[B, H, W, C]``, and classes ``[B]``; of mixed ones ``[B, num_classes]``."""
        single, _, mix = augmentation.partition("+")
        images = normalize(augment("none" if key is None else single, key, batch["image"]), self.mean, self.std)
        if key is None or not mix:
            return images, batch["label"]
        return mixed(mix, jax.random.fold_in(key, 1), images, batch["label"], self.num_classes)

    @property
    def input_spec(self) -> jax.ShapeDtypeStruct:
        """float32 ``[1, H, W, C]``."""
        return jax.ShapeDtypeStruct((1, *self.image_shape), jnp.float32)

    def describe(self) -> str:
        return f"images {'x'.join(map(str, self.image_shape))}, {self.num_classes} classes"


def from_arrays(
    train_images: np.ndarray,
    train_labels: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
    num_classes: int,
    name: str = "arrays",
) -> ImageDataset:
    """An ``ImageDataset`` from arrays in memory.

    Args:
      train_images, test_images: [N, H, W, C], uint8 or float32 on the same 0..255 scale.
      train_labels, test_labels: integers [N] in [0, num_classes).
      num_classes: number of labels.
      name: for messages.
    """
    pairs = (train_images, train_labels), (test_images, test_labels)
    train, test = (ArraySplit({"image": images, "label": labels.astype(np.int32)}) for images, labels in pairs)
    shape = train_images.shape[1:]
    return ImageDataset(name, train, test, num_classes, "device", shape, *channel_statistics(train))


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
        # Of pixel - 127.5 and of its square, per channel, in float64: exact for bytes.
        *_, width, channels = images.shape
        rows = images.reshape(-1, width * channels) - _GRAY  # long rows: several times faster than channels alone
        sums = sums + np.stack([rows.sum(0), np.einsum("ij,ij->j", rows, rows)]).reshape(2, width, channels).sum(1)
        count += len(rows) * width
    mean, square = sums / count
    std = np.sqrt(np.maximum(square - mean**2, 0)) / 255
    return np.asarray((mean + _GRAY) / 255, np.float32), np.where(std < 1e-6, 1.0, std).astype(np.float32)


def load_digits(_: str, config: DataConfig) -> ImageDataset:
    """scikit-learn's digits: 1500 for training, 297 for testing, stratified."""
    why = "data.name='digits'"
    require("PIL", why)
    from PIL import Image

    # Its file alone is read: importing scikit-learn takes longer than everything else before a first step.
    found: Any = importlib.util.find_spec("sklearn") or require("sklearn", why).__spec__
    table = np.loadtxt(os.path.join(os.path.dirname(found.origin), "datasets/data/digits.csv.gz"), delimiter=",")
    images = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    resized = np.stack([np.asarray(fit(Image.fromarray(image), "L", config.image_size)) for image in images])
    labels = table[:, -1].astype(int)
    split, parts = ArraySplit({"image": resized[..., None], "label": labels}), _stratified(labels, 1500)
    return _in_memory(config, chosen(config, map(split.take, parts)), _DIGITS)


def _stratified(labels: np.ndarray, size: int) -> list[np.ndarray]:
    """``size`` indices and the rest, with equal shares of labels: scikit-learn's ``train_test_split`` of seed 0."""
    rng, shares = np.random.RandomState(0), np.bincount(labels) / len(labels) * size
    whole = np.floor(shares)
    sizes = whole.astype(int)
    for fraction in np.unique(shares - whole)[::-1]:
        if lacking := size - sizes.sum():
            (tied,) = np.nonzero(shares - whole == fraction)
            sizes[rng.choice(tied, min(len(tied), lacking), replace=False)] += 1
    drawn = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(sizes))]
    pairs = zip(*(np.split(indices, [n]) for indices, n in zip(drawn, sizes, strict=True)), strict=True)
    return [rng.permutation(np.concatenate(part)) for part in pairs]


def load_synthetic(_: str, config: DataConfig) -> ImageDataset:
    """Ten random color templates under noise."""
    side, classes = config.image_size or 8, len(_DIGITS)
    blocks = np.arange(side) * 8 // side
    means = 128 + 32 * np.random.default_rng(0).normal(size=(classes, 8, 8, 3))[:, blocks][:, :, blocks]

    def draw(count: int, seed: int) -> ArraySplit:
        rng = np.random.default_rng(seed)
        labels = rng.permutation(np.arange(count) % classes)
        pixels = rng.normal(size=(count, side, side, 3))
        pixels *= 48
        pixels += means[labels]
        return ArraySplit({"image": pixels.clip(0, 255, out=pixels).astype(np.uint8), "label": labels})

    splits = draw(config.train_examples or 2048, 1), draw(config.test_examples or 512, 2)
    whole = dataclasses.replace(config, train_examples=0, test_examples=0)  # so many were drawn
    dataset = _in_memory(config, chosen(whole, splits), _DIGITS)
    return dataclasses.replace(dataset, class_names=())


def load_folder(directory: str, config: DataConfig) -> ImageDataset:
    """Image files, read as RGB; see `list_folder`."""

    def split(files: Files) -> ImageFiles:
        fetch = lambda positions: [Encoded(repr(files[i][0]), *files[i]) for i in positions]
        listing = checksum_of_texts(f"{os.path.basename(path)} {label}" for path, label in files)
        return ImageFiles(config, fetch, np.arange(len(files)), (0, 0, 3), listing)

    train, test, classes = list_folder(directory)
    return _of_files(config, (split(train), split(test)), tuple(classes))


def list_folder(directory: str) -> tuple[Files, Files, list[str]]:
    """(path, label) of the training and test images, and the class names: the sorted folders of ``train/``.

    The layout is ImageNet's: JPEG and PNG files in ``train/<class>/``, and in ``test/<class>/`` or, if ``test/`` has no
    class folders, in ``val/<class>/``. Hidden and other files are ignored.
    """
    field, root = f"data.name is 'folder:{directory}'", os.path.expanduser(directory)
    if not os.path.isdir(root):
        raise InputError(f"{field}: there is no folder {root!r}. Give the folder that holds train/ and val/.")
    train, *tests = (os.path.join(root, name) for name in ("train", "test", "val"))
    classes = _folders(train)
    test = next(filter(_folders, tests), "")
    if not classes or not test:
        raise InputError(f"{field}: put the training images into train/<class>/, the test images into val/<class>/.")

    def files(folder: str) -> Files:
        found: Files = []
        for name in _folders(folder):
            if name not in classes:
                raise InputError(f"{field}: the test class {name!r} is not among the folders of train/. Add it.")
            images = [image for image in _entries(os.path.join(folder, name)) if image.lower().endswith(SUFFIXES)]
            found += [(os.path.join(folder, name, image), classes.index(name)) for image in images]
        if not found or (folder == train and len({label for _, label in found}) < len(classes)):
            raise InputError(f"{field}: a class folder of {folder!r} has no {', '.join(SUFFIXES)} files. Add some.")
        return found

    return files(train), files(test), classes


def _entries(directory: str) -> list[str]:
    """Names in a folder without hidden ones, sorted; empty if the folder is absent."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return sorted(name for name in names if not name.startswith("."))


def _folders(directory: str) -> list[str]:
    return [name for name in _entries(directory) if os.path.isdir(os.path.join(directory, name))]


def load_tfds(name: str, config: DataConfig) -> ImageDataset:
    """The prepared set ``<set>``, ``<set>/<config>`` or ``<set>:<version>`` in ``data_dir``, without TensorFlow.

    The test examples are the "test" split, or "validation" if that is absent or has no labels.
    """
    field = f"data.name is 'tfds:{name}'"
    data_dir = f" --data_dir={config.data_dir}" if config.data_dir else ""
    # TFDS's default, tfrecord, has no random access.
    build = f"`tfds build {name}{data_dir} --file_format=array_record --overwrite`"
    try:
        require("tensorflow_datasets", f"data.name=tfds:{name}")
        import tensorflow_datasets as tfds

        builder = tfds.builder(name, data_dir=os.path.expanduser(config.data_dir) or None)
        if not builder.is_prepared():
            raise ValueError(f"it is not in {config.data_dir or 'the default TFDS directory'}")
    # Unknown sets, configs and versions; some sets need TensorFlow until they are prepared.
    except (ImportError, ValueError, AssertionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{field}: TFDS has no such prepared set ({reason}). Run {installs('tfds-prepare')}, and {build} once."
        ) from error
    keys: Any = builder.info.supervised_keys or ()
    features: Any = dict(builder.info.features)
    image, label = [features[key] for key in keys] if len(keys) == 2 else [features, features]  # refused below
    is_image = isinstance(image, tfds.features.Image) and image.np_dtype == np.uint8
    if not is_image or not isinstance(label, tfds.features.ClassLabel):
        raise InputError(f"{field}: its supervised keys are {keys}, not 8-bit images and classes. Use such a set.")
    image_key, label_key = keys
    # TFDS's decoder without TensorFlow returns gray files of a color set with two axes, so images stay encoded.
    channels = image.shape[-1] or 3

    def split(*candidates: str) -> ImageFiles:
        for candidate in filter(builder.info.splits.__contains__, candidates):
            try:
                records = builder.as_data_source(candidate, decoders={image_key: tfds.decode.SkipDecoding()})
            except NotImplementedError as error:
                raise InputError(f"{field}: its files have no random access. Run {build} once.") from error
            if records[0][label_key] >= 0:  # -1 marks an unlabeled example, such as those of ImageNet's test split
                fetch = functools.partial(_fetched, records, keys, f"of the {candidate} split of tfds:{name}")
                return ImageFiles(config, fetch, np.arange(len(records)), (0, 0, channels))
        raise InputError(f"{field}: it has no labeled {' or '.join(candidates)} split. Choose another set.")

    return _of_files(config, (split("train"), split("test", "validation")), tuple(label.names))


def _fetched(records: Any, keys: tuple[str, str], where: str, positions: list[int]) -> list[Encoded]:
    examples = zip(positions, records.__getitems__(positions), strict=True)
    return [Encoded(f"number {i} {where}", x[keys[0]], int(x[keys[1]])) for i, x in examples]


def _in_memory(config: DataConfig, splits: Sequence[ArraySplit], class_names: tuple[str, ...]) -> ImageDataset:
    """The data set of a training and a test split of images."""
    a, b = (split.arrays() for split in splits)
    dataset = from_arrays(a["image"], a["label"], b["image"], b["label"], len(class_names), config.name)
    return dataclasses.replace(dataset, placement=placement(config, a["image"].nbytes), class_names=class_names)


def _of_files(config: DataConfig, splits: Sequence[ImageFiles], class_names: tuple[str, ...]) -> ImageDataset:
    """The data set of encoded images, decoded now or when read; all have the shape of the first training image."""
    splits = chosen(config, splits)
    (first,) = splits[0].fetch(splits[0].order[:1].tolist())
    shape = decode(first, splits[0].image_shape[-1], config).shape
    train, test = (dataclasses.replace(split, image_shape=shape) for split in splits)
    if placement(config, len(train) * int(np.prod(shape))) == "device":
        dataset = _in_memory(config, (ArraySplit(train.arrays()), ArraySplit(test.arrays())), class_names)
        return dataclasses.replace(dataset, given=(train, test))
    statistics = channel_statistics(train)
    return ImageDataset(config.name, train, test, len(class_names), "stream", shape, *statistics, class_names)
