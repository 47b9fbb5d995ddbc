"""``load``: from the fields of ``config.data`` to a ``Dataset``, by a table of sources."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

from depthmup_flax.data import images
from depthmup_flax.data.augmentation import IMAGE_AUGMENTATIONS
from depthmup_flax.data.dataset import DATA_DEFAULTS, DataConfig, Dataset
from depthmup_flax.data.text import load_text, load_tokens
from depthmup_flax.data.user_data import load_python
from depthmup_flax.util.errors import InputError, closest, did_you_mean, require_number


@dataclasses.dataclass(frozen=True)
class DataSource:
    """How to load what ``data.name`` says: a word of `SOURCES`, or a word, a colon and a place."""

    form: str  # of data.name, for messages: "digits", "folder:<dir>"
    load: Callable[[str, DataConfig], Dataset]  # of the place
    # A new kind also needs `checked_source`, `stored_dataset`, engine/from_config._READS and runs/trained.
    kind: Literal["images", "text", "arrays"]
    reads: tuple[str, ...] = ()  # fields of config.data that this source reads and some others ignore
    decodes: bool = False  # whether examples are image files, which can be cropped before they are resized


# The first word of data.name -> its source. A new source is a function that returns a `Dataset`, and an entry here.
SOURCES: dict[str, DataSource] = {
    "digits": DataSource("digits", images.load_digits, "images", ("image_size",)),
    "synthetic": DataSource("synthetic", images.load_synthetic, "images", ("image_size",)),
    "tfds": DataSource("tfds:<set>", images.load_tfds, "images", ("image_size", "data_dir"), decodes=True),
    "folder": DataSource("folder:<dir>", images.load_folder, "images", ("image_size",), decodes=True),
    "text": DataSource("text:<file>", load_text, "text", ("context", "tokenizer")),
    "tokens": DataSource("tokens:<dir>", load_tokens, "text", ("context",)),
    "python": DataSource("python:<module>:<function>", load_python, "arrays", ("ignore_label",)),
}
_CHOICES = {"placement": ("auto", "device", "stream")}


def load(config: object) -> Dataset:
    """Opens the data set that ``config`` describes: a ``DataConfig``, or any object with its attributes.

    * ``digits``: scikit-learn's 8x8 digits, gray, values 0..16 stretched to 0..255; 1500 train, 297 test, stratified.
    * ``synthetic``: ten random color templates under noise, 8x8 or ``image_size``; ``train_examples`` (default 2048)
      and ``test_examples`` (512).
    * ``tfds:<set>``: a prepared TFDS set, from ``data_dir``; see `images.load_tfds`.
    * ``folder:<dir>``: image files, read as RGB; see `images.list_folder`.
    * ``text:<file>``: UTF-8, or any file with ``tokenizer`` "byte"; see `text.windows`.
    * ``tokens:<dir>``: files of tokens; see `text.load_tokens`.
    * ``python:<module>:<function>``: what a function of the user returns; see `user_data.load_python`.

    ``train_examples`` = n > 0 keeps the first n after a fixed shuffle. ``validation_fraction`` > 0 holds out that share
    of them, which evaluations use in place of the test set: after a fixed shuffle; of a text, its last part.

    ``placement`` "device" decodes everything into memory now; "stream" decodes when read. ``augment`` "resized_crop"
    requires image files (tfds: or folder:) and always streams.

    Raises:
      InputError: a field that cannot be used.
      UserCodeError: a function of the user fails.
      RunStopped: the storage fails.
    """
    fields = _fields(config)
    source, place = checked_source(fields)
    return named_split(source.load(place, fields), fields)


def named_split(dataset: Dataset, fields: DataConfig) -> Dataset:
    """``dataset``, which knows whether it evaluates the test set or held-out training examples."""
    return dataclasses.replace(dataset, evaluated="validation" if fields.validation_fraction else "test")


class LoadOnce:
    """``load`` with a cache: configs with equal fields get the same object."""

    def __init__(self, load: Callable[[DataConfig], Dataset] = load) -> None:
        self._load = functools.cache(load)

    def __call__(self, config: object) -> Dataset:
        """The data set that ``config`` describes; see ``load``."""
        return self._load(_fields(config))


def _fields(config: object) -> DataConfig:
    return DataConfig(**{name: getattr(config, name) for name in DATA_DEFAULTS})


def checked_source(fields: DataConfig) -> tuple[DataSource, str]:
    """The source and the place of ``data.name``; InputError for fields that are wrong whatever the data."""
    source, place = find_source(fields.name)
    names = {"images": IMAGE_AUGMENTATIONS, "text": ("none", "shift"), "arrays": ("none",)}[source.kind]
    if fields.augment not in names:
        own = "the data are yours. Use none, and augment in prepare(key, batch)."
        meant = own if source.kind == "arrays" else did_you_mean(fields.augment, names)
        raise InputError(f"data.augment is {fields.augment!r}: {meant}")
    for field, default in DATA_DEFAULTS.items():
        value = getattr(fields, field)
        readers = [other.form for other in SOURCES.values() if field in other.reads]
        if readers and field not in source.reads and value != default:
            raise InputError(f"data.{field} is {value!r}: of {' and '.join(readers)} alone. Use {default!r}.")
        if field in _CHOICES and value not in _CHOICES[field]:
            raise InputError(f"data.{field} is {value!r}: {did_you_mean(value, _CHOICES[field])}")
        if isinstance(default, int):
            require_number(f"data.{field}", value, least=int(field == "context"), whole=True)
    require_number("data.validation_fraction", fields.validation_fraction, least=0, below=1)
    for field, directory in (("data_dir", fields.data_dir), ("name", fields.name)):
        if "://" in str(directory):
            raise InputError(f"data.{field} is {directory!r}: data are read from disks. Copy them to a directory.")
    if fields.crops_files and not (source.decodes and fields.image_size and fields.placement != "device"):
        raise InputError(
            f"data.augment is {fields.augment!r}: it crops image files (tfds: or folder:) to data.image_size, such as "
            "224, at every step, so data.placement must not be 'device'. Set these, or use 'imagenet'."
        )
    return source, place


def find_source(name: str) -> tuple[DataSource, str]:
    """The source of ``data.name``, and the place after the colon."""
    word, _, place = name.partition(":")
    source = SOURCES.get(word)
    if source is not None and (place if ":" in source.form else name == word):
        return source, place
    forms, meant = ", ".join(source.form for source in SOURCES.values()), closest(word, SOURCES)
    hint = f" Did you mean {SOURCES[meant].form}?" if meant else ""
    raise InputError(f"data.name is {name!r}: there is no such data set. Use one of {forms}.{hint}")
