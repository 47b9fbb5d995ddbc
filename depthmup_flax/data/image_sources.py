"""Where images come from: scikit-learn's digits, synthetic templates, folders of files, TensorFlow Datasets."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from depthmup_flax.data.dataset import (
    ArraySplit,
    DataConfig,
    NotHere,
    checksum_of_texts,
    chosen,
    placement,
)
from depthmup_flax.data.image_files import SUFFIXES, Encoded, Fetch, ImageFiles, decode, fit
from depthmup_flax.data.images import ImageDataset, channel_statistics, from_arrays
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.extras import require

_DIGITS = tuple("0123456789")
Files = list[tuple[str, int]]  # paths and labels


def load_digits(_: str, config: DataConfig) -> ImageDataset:
    """scikit-learn's digits: 1500 for training, 297 for testing, stratified."""
    for package in ("sklearn", "PIL"):
        require(package, "data.name='digits'")
    import sklearn.datasets
    from PIL import Image
    from sklearn.model_selection import train_test_split

    bundle = sklearn.datasets.load_digits()
    images = np.round(bundle.images * (255 / 16)).astype(np.uint8)
    resized = np.stack([np.asarray(fit(Image.fromarray(image), "L", config.image_size)) for image in images])
    split = ArraySplit({"image": resized[..., None], "label": bundle.target})
    parts = train_test_split(
        np.arange(len(images)), train_size=1500, test_size=297, stratify=bundle.target, random_state=0
    )
    return _in_memory(config, chosen(config, map(split.take, parts)), _DIGITS)


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
        return ImageFiles(config, fetch, np.arange(len(files)), len(classes), (0, 0, 3), listing)

    train, test, classes = list_folder(directory)
    return _of_files(config, (split(train), split(test)), tuple(classes))


def list_folder(directory: str) -> tuple[Files, Files, list[str]]:
    """(path, label) of the training and test images, and the class names: the sorted folders of ``train/``.

    The layout is ImageNet's: JPEG and PNG files in ``train/<class>/``, and in ``test/<class>/`` or, if ``test/`` has no
    class folders, in ``val/<class>/``. Hidden and other files are ignored.
    """
    field, root = f"data.name is 'folder:{directory}'", os.path.expanduser(directory)
    if not os.path.isdir(root):
        raise NotHere(f"{field}: there is no folder {root!r}. Give the folder that holds train/ and val/.")
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
        raise NotHere(
            f'{field}: TFDS has no such prepared set ({reason}). Run `pip install "depthmup-flax[tfds-prepare]"` and '
            f"{build} once."
        ) from error
    keys = builder.info.supervised_keys or ()
    image, label = map(dict(builder.info.features).get, keys) if len(keys) == 2 else (None, None)
    is_image = isinstance(image, tfds.features.Image) and image.np_dtype == np.uint8
    if not is_image or not isinstance(label, tfds.features.ClassLabel):
        raise InputError(f"{field}: its supervised keys are {keys}, not 8-bit images and classes. Use such a set.")
    image_key, label_key = keys
    # TFDS's decoder without TensorFlow returns gray files of a color set with two axes, so images stay encoded.
    channels = image.shape[-1] or 3
    open_split = functools.partial(builder.as_data_source, decoders={image_key: tfds.decode.SkipDecoding()})

    def split(*candidates: str) -> ImageFiles:
        for candidate in filter(builder.info.splits.__contains__, candidates):
            try:
                records = open_split(split=candidate)
            except NotImplementedError as error:
                raise InputError(f"{field}: its files have no random access. Run {build} once.") from error
            if records[0][label_key] >= 0:  # -1 marks an unlabeled example, such as those of ImageNet's test split
                fetch = _fetch(records, keys, f"of the {candidate} split of tfds:{name}")
                return ImageFiles(config, fetch, np.arange(len(records)), label.num_classes, (0, 0, channels))
        raise InputError(f"{field}: it has no labeled {' or '.join(candidates)} split. Choose another set.")

    return _of_files(config, (split("train"), split("test", "validation")), tuple(label.names))


def _fetch(records: Any, keys: tuple[str, str], where: str) -> Fetch:
    def fetch(positions: list[int]) -> list[Encoded]:
        examples = zip(positions, records.__getitems__(positions), strict=True)
        return [Encoded(f"number {i} {where}", x[keys[0]], int(x[keys[1]])) for i, x in examples]

    return fetch


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
