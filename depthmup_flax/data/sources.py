"""``load``: from ``config.data`` to a ``Dataset``."""

import dataclasses
import difflib
import functools
import json
from typing import Any

import numpy as np

from depthmup_flax.data.augmentation import check_name
from depthmup_flax.data.dataset import ArraySplit, Dataset, EncodedSplit, ImageDataset, channel_statistics, from_arrays
from depthmup_flax.data.folder import list_folder
from depthmup_flax.data.images import Encoded, decode, draft_and_fit, fit_gray
from depthmup_flax.data.text import TOKENIZERS, TextDataset, check_text_augmentation, read_tokens, windows
from depthmup_flax.data.tfds_sets import Fetch, open_tfds
from depthmup_flax.errors import InputError

DATA_DEFAULTS: dict[str, Any] = {
    "name": "digits",  # digits | synthetic | tfds:<set> | folder:<dir> | text:<file>
    "data_dir": "",  # where TFDS sets are prepared; "" is TFDS's default
    "image_size": 0,  # pixels; 0 keeps the data's own size
    "augment": "none",  # images: none | cifar | imagenet | resized_crop; text: none | shift
    "placement": "auto",  # auto | device | stream
    "device_limit_mib": 2048,  # auto streams training examples that take more
    "train_examples": 0,  # 0 is all
    "test_examples": 0,
    "context": 64,  # text: tokens that a model sees
    "tokenizer": "char",  # text: char | byte
    "read_threads": 0,  # that decode images; 0 is one for each core that the process may use
}

_PLACEMENTS = ("auto", "device", "stream")
_FORMS = "digits, synthetic, tfds:<set>, folder:<dir> or text:<file>"

Source = tuple[ArraySplit | EncodedSplit, ArraySplit | EncodedSplit, int]


class LoadOnce:
    """`load` that opens a data set once: configs with equal fields get the same object."""

    def __init__(self) -> None:
        self._loaded: dict[str, Dataset] = {}

    def __call__(self, config: Any) -> Dataset:
        """The data set that ``config`` describes."""
        fields = json.dumps({name: getattr(config, name) for name in DATA_DEFAULTS}, sort_keys=True)
        if fields not in self._loaded:
            self._loaded[fields] = load(config)
        return self._loaded[fields]


def load(config: Any) -> Dataset:
    """Opens the data set that ``config`` (attributes as in ``DATA_DEFAULTS``) describes.

    * ``digits``: scikit-learn's 8x8 digits, gray, values 0..16 stretched to 0..255; 1500 train, 297 test, stratified.
    * ``synthetic``: ten random color templates under noise, 8x8 or ``image_size``; 2048 train and 512 test examples
      unless ``train_examples`` and ``test_examples`` say otherwise.
    * ``tfds:<set>``: a prepared TFDS set, from ``data_dir``; see ``tfds_sets.open_tfds``.
    * ``folder:<dir>``: image files, always read as RGB; see ``folder.list_folder``.
    * ``text:<file>``: a text in UTF-8 (or, with ``tokenizer`` "byte", any file) for a language model: the first nine
      tenths of its tokens for training, the rest for testing, cut into examples by ``text.windows``.

    ``train_examples`` = n > 0 keeps the first n after a shuffle that is the same in every run, so classes stay mixed.
    ``placement`` "device" decodes everything into memory now; "stream" decodes when read. ``augment`` "resized_crop"
    needs the whole images at every step, so it is for image files (tfds: and folder:) and always streams.

    Raises:
      InputError: a field that cannot be used, naming the field, its value and the remedy.
    """
    kind, _, rest = config.name.partition(":")
    if kind == "text" and rest:
        return _text(rest, config)
    check_name(config.augment)
    _check_fields(config)
    _check_resized_crop(config)
    for field in ("context", "tokenizer"):
        if getattr(config, field) != DATA_DEFAULTS[field]:
            raise InputError(
                f"data.{field} is {getattr(config, field)!r}, which is for text; leave it at {DATA_DEFAULTS[field]!r} "
                f"or use data.name = 'text:<file>'."
            )
    train, test, num_classes = _open(config)
    if config.name != "synthetic":
        train = _limit(train, "train_examples", config.train_examples)
        test = _limit(test, "test_examples", config.test_examples)
    if isinstance(train, EncodedSplit):
        placement = _placement(config, len(train) * int(np.prod(train.image_shape)))
        if placement == "stream":
            mean, std = channel_statistics(train)
            return ImageDataset(config.name, train, test, num_classes, "stream", train.image_shape, mean, std)
    images, held_out = train.arrays(), test.arrays()
    dataset = from_arrays(
        images["image"], images["label"], held_out["image"], held_out["label"], num_classes, config.name
    )
    return dataclasses.replace(dataset, placement=_placement(config, images["image"].size))


def _check_fields(config: Any) -> None:
    if config.placement not in _PLACEMENTS:
        raise InputError(f"data.placement is {config.placement!r}; use one of {', '.join(_PLACEMENTS)}.")
    for field in ("image_size", "device_limit_mib", "train_examples", "test_examples", "read_threads"):
        if getattr(config, field) < 0:
            raise InputError(f"data.{field} is {getattr(config, field)}; use 0 or a positive number.")


def _check_resized_crop(config: Any) -> None:
    if config.augment != "resized_crop":
        return
    field = "data.augment is 'resized_crop'"
    if config.name in ("digits", "synthetic"):
        raise InputError(
            f"{field}, which cuts parts out of image files, but data.name is {config.name!r}, which has none; "
            "use 'imagenet', or a tfds: or folder: set."
        )
    if not config.image_size:
        raise InputError(f"{field}, but data.image_size is 0; set the size that crops are resized to (say 224).")
    if config.placement == "device":
        raise InputError(
            f"{field}, which decodes other parts of the images at every step, but data.placement is 'device'; "
            "use 'auto' or 'stream'."
        )


def _open(config: Any) -> Source:
    kind, colon, rest = config.name.partition(":")
    if config.name == "digits":
        return _digits(config.image_size)
    if config.name == "synthetic":
        return _synthetic(config.image_size or 8, config.train_examples or 2048, config.test_examples or 512)
    if kind == "tfds" and rest:
        return _encoded(config, *open_tfds(rest, config.data_dir))
    if kind == "folder" and rest:
        return _folder(rest, config)
    close = difflib.get_close_matches(kind, ["digits", "synthetic", "tfds", "folder", "text"], n=1)
    if kind.endswith(".txt"):
        guess = f"text:{config.name}"
    elif not close:
        guess = f"tfds:{kind}"
    elif close[0] in ("tfds", "folder", "text"):
        guess = f"{close[0]}{colon}{rest}"
    else:
        guess = close[0]
    hint = f" (did you mean {guess!r}?)" if kind and guess != config.name else ""
    raise InputError(f"data.name is {config.name!r}, which is no data set; use {_FORMS}{hint}.")


def _placement(config: Any, train_bytes: int) -> Any:
    if config.augment == "resized_crop":
        return "stream"
    if config.placement != "auto":
        return config.placement
    return "stream" if train_bytes > config.device_limit_mib * 2**20 else "device"


def _limit(split: Any, field: str, count: int) -> Any:
    if count > len(split):
        raise InputError(f"data.{field} is {count}, but there are {len(split)}; use 0 for all of them.")
    return split.take(np.random.default_rng(0).permutation(len(split))[:count]) if count else split


def _digits(image_size: int) -> Source:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = np.round(digits.images[..., None] * (255 / 16)).astype(np.uint8)
    train, test = train_test_split(
        np.arange(len(images)), train_size=1500, test_size=297, stratify=digits.target, random_state=0
    )
    split = ArraySplit({"image": fit_gray(images, image_size), "label": digits.target})
    return split.take(train), split.take(test), 10


def _synthetic(side: int, train: int, test: int) -> Source:
    rng = np.random.default_rng(0)
    blocks = np.arange(side) * 8 // side
    templates = rng.normal(size=(10, 8, 8, 3))[:, blocks][:, :, blocks]

    def draw(count: int, seed: int) -> ArraySplit:
        rng = np.random.default_rng(seed)
        labels = rng.permutation(np.arange(count) % 10)
        noise = rng.normal(size=(count, side, side, 3))
        images = np.clip(128 + 32 * templates[labels] + 48 * noise, 0, 255).astype(np.uint8)
        return ArraySplit({"image": images, "label": labels})

    return draw(train, 1), draw(test, 2), 10


def _text(path: str, config: Any) -> TextDataset:
    check_text_augmentation(config.augment)
    _check_fields(config)
    if config.image_size:
        raise InputError(f"data.image_size is {config.image_size}, but text has no pixels; use 0.")
    if not isinstance(config.context, int) or isinstance(config.context, bool) or config.context < 1:
        raise InputError(f"data.context is {config.context!r}; use a whole number of at least 1.")
    if config.tokenizer not in TOKENIZERS:
        raise InputError(f"data.tokenizer is {config.tokenizer!r}; use one of {', '.join(TOKENIZERS)}.")
    tokens, tokenizer = read_tokens(path, config.tokenizer)
    train, test = (ArraySplit({"tokens": x}) for x in windows(tokens, config.context, config.name))
    train = _limit(train, "train_examples", config.train_examples)
    test = _limit(test, "test_examples", config.test_examples)
    placement = _placement(config, train.fields["tokens"].nbytes)
    return TextDataset(config.name, train, test, tokenizer.vocab_size, placement, config.context, tokenizer)


def _folder(directory: str, config: Any) -> Source:
    train, test, classes = list_folder(directory)

    def fetch(files: list[tuple[str, int]]) -> Fetch:
        return lambda positions: [Encoded(files[i][0], *files[i]) for i in positions]

    return _encoded(config, (fetch(train), fetch(test)), (len(train), len(test)), len(classes), 3)


def _encoded(
    config: Any, fetches: tuple[Fetch, Fetch], lengths: tuple[int, int], num_classes: int, channels: int
) -> Source:
    """The two splits, with the shape of the first training image as the shape of all."""
    (first,) = fetches[0]([0])
    shape = decode(first, channels, config.name, functools.partial(draft_and_fit, size=config.image_size)).shape
    train, test = (
        EncodedSplit(
            config.name,
            fetch,
            np.arange(length),
            num_classes,
            shape,
            config.image_size,
            first.where,
            resized_crop=config.augment == "resized_crop",
            threads=config.read_threads,
        )
        for fetch, length in zip(fetches, lengths, strict=True)
    )
    return train, test, num_classes
