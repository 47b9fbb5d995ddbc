"""``load``: from the fields of ``config.data`` to a ``Dataset``."""

import dataclasses
import difflib
import functools
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from depthmup_flax.data.augmentation import check_augmentation
from depthmup_flax.data.crops import fit
from depthmup_flax.data.dataset import ArraySplit, DataConfig, Dataset, Placement
from depthmup_flax.data.decoding import EncodedSplit, of_one_shape
from depthmup_flax.data.image_folder import SUFFIXES, open_folder, separated
from depthmup_flax.data.images import ImageDataset, channel_statistics, from_arrays
from depthmup_flax.data.text import TOKENIZERS, TextDataset, read_tokens, windows
from depthmup_flax.data.tfds_images import open_tfds
from depthmup_flax.errors import InputError

AnySplit = TypeVar("AnySplit", ArraySplit, EncodedSplit)

DATA_DEFAULTS = dataclasses.asdict(DataConfig())
_BUNDLED_CLASSES = 10
_PLACEMENTS = ("auto", "device", "stream")
_KINDS = ("digits", "synthetic", "tfds", "folder", "text")
# Fields that only some kinds of sets read -> what they are for, and the names of such sets.
_ONLY_FOR = {
    "data_dir": ("sets of TFDS", ("tfds:<set>",)),
    "context": ("text", ("text:<file>",)),
    "tokenizer": ("text", ("text:<file>",)),
    "suffixes": ("folders of images", ("folder:<dir>",)),
    "on_bad_example": ("image files", ("folder:<dir>", "tfds:<set>")),
}


class LoadOnce:
    """``load`` with a cache: configs with equal fields get the same object."""

    def __init__(self) -> None:
        self._load = functools.cache(load)

    def __call__(self, config: object) -> Dataset:
        """The data set that ``config`` describes; see ``load``."""
        return self._load(_fields(config))


def load(config: object) -> Dataset:
    """Opens the data set that ``config`` describes: a ``DataConfig``, or any object with its attributes.

    * ``digits``: scikit-learn's 8x8 digits, gray, values 0..16 stretched to 0..255; 1500 train, 297 test, stratified.
    * ``synthetic``: ten random color templates under noise, 8x8 or ``image_size``; ``train_examples`` (default 2048)
      and ``test_examples`` (512).
    * ``tfds:<set>``: a prepared TFDS set, from ``data_dir``; see ``tfds_images.open_tfds``.
    * ``folder:<dir>``: image files, always read as RGB; see ``image_folder.list_folder``.
    * ``text:<file>``: a text in UTF-8 (or, with ``tokenizer`` "byte", any file) for a language model; see
      ``text.windows``.

    ``train_examples`` = n > 0 keeps the first n after a shuffle that is the same in every run, so classes stay mixed.
    ``placement`` "device" decodes everything into memory now; "stream" decodes when read. ``augment`` "resized_crop"
    needs the whole images at every step, so it requires image files (tfds: or folder:) and always streams.

    ``on_bad_example`` "skip" leaves out image files that cannot be decoded: in training the next good example of the
    split takes the place of each, the test counts only the others. ``Dataset.bad_examples`` has them; more than
    ``decoding.MOST_BAD`` of a split are an error.

    Raises:
      InputError: a field that cannot be used.
      RunStopped: the storage fails.
    """
    fields = _fields(config)
    kind, _, rest = fields.name.partition(":")
    check_fields(fields)
    if kind == "text" and rest:
        return _text(rest, fields)
    if fields.name == "synthetic":
        sizes = (fields.image_size or 8, fields.train_examples or 2048, fields.test_examples or 512)
        return _in_memory(fields, *_synthetic(*sizes), _BUNDLED_CLASSES)
    if fields.name == "digits":
        train, test = _limited(fields, _digits(fields.image_size))
        return _in_memory(fields, train, test, _BUNDLED_CLASSES, tuple("0123456789"))
    if kind == "tfds" and rest:
        encoded = open_tfds(rest, fields.data_dir)
    elif kind == "folder" and rest:
        encoded = open_folder(rest, fields.suffixes)
    else:
        raise _unknown_name(fields.name)
    splits, bad = encoded.split(fields)
    files, held_out = of_one_shape(*_limited(fields, splits))
    if placement(fields, len(files) * int(np.prod(files.image_shape))) == "device":
        parts = ArraySplit(files.arrays()), ArraySplit(held_out.good_arrays())
        return dataclasses.replace(_in_memory(fields, *parts, files.num_classes, encoded.class_names), bad=bad)
    mean, std = channel_statistics(files)
    shape, classes, names = files.image_shape, files.num_classes, encoded.class_names
    return ImageDataset(fields.name, files, held_out, classes, "stream", shape, mean, std, bad, names)


def _fields(config: object) -> DataConfig:
    return DataConfig(**{name: getattr(config, name) for name in DATA_DEFAULTS})


def check_fields(fields: DataConfig) -> None:
    """Raises `InputError` for a field that can be judged without the data."""
    check_augmentation(fields.augment, "text" if fields.name.startswith("text:") else "images")
    if fields.placement not in _PLACEMENTS:
        raise InputError(f"data.placement is {fields.placement!r}; use one of {', '.join(_PLACEMENTS)}.")
    for field in ("image_size", "device_limit_mib", "train_examples", "test_examples", "read_threads"):
        if getattr(fields, field) < 0:
            raise InputError(f"data.{field} is {getattr(fields, field)}; use 0 or a positive number.")
    if fields.on_bad_example not in ("error", "skip"):
        raise InputError(f"data.on_bad_example is {fields.on_bad_example!r}; use 'error' or 'skip'.")
    if unknown := set(separated(fields.suffixes)) - set(SUFFIXES):
        raise InputError(
            f"data.suffixes is {fields.suffixes!r}, but {min(unknown)!r} is not read; separate some of "
            f"{', '.join(SUFFIXES)} by commas, without dots."
        )
    _check_kind(fields)
    if fields.name.startswith("text:"):
        _check_text(fields)
    else:
        _check_images(fields)


def _check_kind(fields: DataConfig) -> None:
    """Refuses fields that this kind of set does not read; a name of no kind has an error of its own."""
    kind = fields.name.partition(":")[0]
    for field, (use, names) in _ONLY_FOR.items():
        value, default = getattr(fields, field), DATA_DEFAULTS[field]
        if value != default and kind in _KINDS and not any(name.startswith(f"{kind}:") for name in names):
            named = " or ".join(map(repr, names))
            raise InputError(
                f"data.{field} is {value!r}, which is for {use}; leave it at {default!r} or use data.name = {named}."
            )


def _check_text(fields: DataConfig) -> None:
    if fields.image_size:
        raise InputError(f"data.image_size is {fields.image_size}, but text has no pixels; use 0.")
    if type(fields.context) is not int or fields.context < 1:
        raise InputError(f"data.context is {fields.context!r}; use a whole number of at least 1.")
    if fields.tokenizer not in TOKENIZERS:
        raise InputError(f"data.tokenizer is {fields.tokenizer!r}; use one of {', '.join(TOKENIZERS)}.")


def _check_images(fields: DataConfig) -> None:
    if fields.augment != "resized_crop":
        return
    field = "data.augment is 'resized_crop'"
    if fields.name in ("digits", "synthetic"):
        raise InputError(
            f"{field}, which crops image files, but data.name is {fields.name!r}, which has none; use 'imagenet', or "
            "a tfds: or folder: set."
        )
    if not fields.image_size:
        raise InputError(f"{field}, but data.image_size is 0; set the size that crops are resized to, such as 224.")
    if fields.placement == "device":
        raise InputError(
            f"{field}, which decodes the image files at every step, but data.placement is 'device'; use 'auto' or "
            "'stream'."
        )


def _unknown_name(name: str) -> InputError:
    kind, colon, rest = name.partition(":")
    close = difflib.get_close_matches(kind, _KINDS, n=1)
    if kind.endswith(".txt") or not close:
        guess = f"text:{name}" if kind.endswith(".txt") else f"tfds:{kind}"
    else:
        guess = close[0] if close[0] in ("digits", "synthetic") else f"{close[0]}{colon}{rest}"
    hint = f" (did you mean {guess!r}?)" if kind and guess != name else ""
    forms = "digits, synthetic, tfds:<set>, folder:<dir> or text:<file>"
    return InputError(f"data.name is {name!r}, which is no data set; use {forms}{hint}.")


def placement(fields: DataConfig, train_bytes: int) -> Placement:
    """Where a training set of so many bytes goes."""
    if fields.augment == "resized_crop" or fields.placement == "stream":
        return "stream"
    return "stream" if fields.placement == "auto" and train_bytes > fields.device_limit_mib * 2**20 else "device"


def _limited(fields: DataConfig, splits: Iterable[AnySplit]) -> list[AnySplit]:
    """The training and test split, cut to ``train_examples`` and ``test_examples``."""
    limited = []
    for split, field in zip(splits, ("train_examples", "test_examples"), strict=True):
        if (count := getattr(fields, field)) > len(split):
            raise InputError(f"data.{field} is {count}, but there are {len(split)}; use 0 for all of them.")
        limited.append(split.take(np.random.default_rng(0).permutation(len(split))[:count]) if count else split)
    return limited


def _in_memory(
    fields: DataConfig, train: ArraySplit, test: ArraySplit, num_classes: int, class_names: tuple[str, ...] = ()
) -> ImageDataset:
    a, b = train.arrays(), test.arrays()
    dataset = from_arrays(a["image"], a["label"], b["image"], b["label"], num_classes, fields.name)
    return dataclasses.replace(dataset, placement=placement(fields, a["image"].nbytes), class_names=class_names)


def _text(path: str, fields: DataConfig) -> TextDataset:
    tokens, tokenizer = read_tokens(path, fields.tokenizer)
    parts = windows(tokens, fields.context, fields.name)
    train, test = _limited(fields, (ArraySplit({"tokens": part}) for part in parts))
    where = placement(fields, train.fields["tokens"].nbytes)
    return TextDataset(fields.name, train, test, tokenizer.vocab_size, where, fields.context, tokenizer)


def _digits(image_size: int) -> tuple[ArraySplit, ArraySplit]:
    from PIL import Image
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bundle = load_digits()
    images = np.round(bundle.images * (255 / 16)).astype(np.uint8)
    resized = np.stack([np.asarray(fit(Image.fromarray(image), "L", image_size)) for image in images])
    split = ArraySplit({"image": resized[..., None], "label": bundle.target})
    train, test = train_test_split(
        np.arange(len(images)), train_size=1500, test_size=297, stratify=bundle.target, random_state=0
    )
    return split.take(train), split.take(test)


def _synthetic(side: int, train: int, test: int) -> tuple[ArraySplit, ArraySplit]:
    blocks = np.arange(side) * 8 // side
    means = 128 + 32 * np.random.default_rng(0).normal(size=(_BUNDLED_CLASSES, 8, 8, 3))[:, blocks][:, :, blocks]

    def draw(count: int, seed: int) -> ArraySplit:
        rng = np.random.default_rng(seed)
        labels = rng.permutation(np.arange(count) % _BUNDLED_CLASSES)
        pixels = rng.normal(size=(count, side, side, 3))
        pixels *= 48
        pixels += means[labels]
        return ArraySplit({"image": pixels.clip(0, 255, out=pixels).astype(np.uint8), "label": labels})

    return draw(train, 1), draw(test, 2)
