"""What a data set is: the fields that name it, two splits with random access, and inputs and labels from a batch."""

from __future__ import annotations

import abc
import dataclasses
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Batch, HostBatch

Placement = Literal["device", "stream"]
Evaluated = Literal["test", "validation"]

MEMORY_LIMIT = 2**31  # bytes: larger training sets are streamed, unless data.placement says otherwise
_WHOLE = 4 * 2**30  # of larger arrays, which may be mapped from a disk, a checksum reads some, spaced evenly
_CHECKED = 4096  # examples copied at a time for a checksum if they are not contiguous
_LABELS, _CHUNK = 4096, 512  # examples whose labels `chance_loss` reads, evenly spaced; and how many at a time


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The fields of ``config.data``; see ``load``."""

    # The data set: digits | synthetic | tfds:<set> | folder:<dir> | text:<file> | tokens:<dir>
    # | python:<module>:<function>
    name: str = "digits"
    data_dir: str = ""  # where TFDS sets are prepared; "" is TFDS's default
    image_size: int = 0  # side in pixels; 0 keeps the data's own size
    # Images: none | cifar | imagenet | resized_crop, each alone or with +mixup or +cutmix; text: none | shift
    augment: str = "none"
    placement: str = "auto"  # of examples: auto | device, all in memory | stream, read in training; auto: up to 2 GiB
    train_examples: int = 0  # training examples to keep; 0 is all
    test_examples: int = 0  # test examples to keep; 0 is all
    # Share of the training examples that is evaluated in place of the test set, and not trained on; 0: the test set.
    validation_fraction: float = 0.0
    context: int = 64  # text: tokens that a model sees
    tokenizer: str = "char"  # text: char | byte | a tokenizer.json of the library tokenizers
    # python: integer targets of a cross-entropy that mark no label, such as -100 for padding: in no mean. None: none
    ignore_label: int | None = None

    @property
    def crops_files(self) -> bool:
        """Whether image files are cropped at random when read."""
        return self.augment.partition("+")[0] == "resized_crop"


DATA_DEFAULTS = dataclasses.asdict(DataConfig())


class Split(abc.ABC):
    """The examples of one split, numbered from 0."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    @abc.abstractmethod
    def read(self, indices: np.ndarray) -> HostBatch:
        """The examples ``indices`` [B] as arrays with a leading axis B; thread-safe.

        Images: ``{"image": [B, H, W, C], "label": int32 [B]}``, uint8 or float32 in 0..255. Text:
        ``{"tokens": [B, W]}``, unsigned integers. Data of a user: see ``user_data.ExampleSpec``.
        """

    def arrays(self) -> HostBatch:
        """The whole split in memory, in order, in the format of ``read``."""
        return self.read(np.arange(len(self)))

    @abc.abstractmethod
    def checksum(self) -> str:
        """Eight hexadecimal digits, which differ if examples have changed."""

    def version(self) -> str | None:
        """What the user states that the examples are, by a ``fingerprint()``, if anything."""
        return None


@dataclasses.dataclass(frozen=True)
class Dataset(abc.ABC):
    """A named data set."""

    name: str  # as given to ``load`` or ``from_arrays``
    train: Split
    test: Split
    num_classes: int  # labels run from 0 to num_classes - 1
    # "device": both splits are arrays, which the trainer copies to the devices. "stream": batches are read.
    placement: Placement
    # What `test` holds: the test set, or examples held out of the training set (``data.validation_fraction``).
    evaluated: Evaluated = dataclasses.field(default="test", kw_only=True)
    # Both splits as their source gives them, if they were read into memory: of these are the checksums.
    given: tuple[Split, ...] = dataclasses.field(default=(), kw_only=True)

    unit: ClassVar[str]  # of throughput: "images", "tokens" or "examples"

    @property
    @abc.abstractmethod
    def input_kind(self) -> str:
        """What a model of ours must read: "image" or "tokens"; "arrays" if none does."""

    @abc.abstractmethod
    def prepare(self, augmentation: str, key: jax.Array | None, batch: Batch) -> Any:
        """The model's inputs ``[B, ...]`` and labels, int32 ``[B, ...]``, in a jitted step; of mixed images float32.

        ``batch`` has the format of ``Split.read``. ``augmentation`` is ``data.augment``; it is off without ``key``.
        """

    @property
    @abc.abstractmethod
    def input_spec(self) -> Any:
        """Shape and type of the prepared input of one example, with a leading axis of 1; of a user a tree of them."""

    def labels(self, batch: HostBatch) -> np.ndarray | jax.Array:
        """The labels that count in a batch of ``Split.read``, without augmentation; of a text its tokens."""
        return batch["label" if "label" in batch else "tokens"]

    def further(self, means: Mapping[str, float]) -> dict[str, float]:
        """Metrics of an evaluation that follow from its means."""
        return {}

    @property
    def has_epochs(self) -> bool:
        """Whether the training examples are a set, of which an epoch reads each once; else ``train.steps`` counts."""
        return True

    @property
    def train_size(self) -> str:
        """The number of training examples, for the terminal."""
        return f"{len(self.train):,}" if self.has_epochs else "endless"

    @property
    def checksums(self) -> tuple[str, ...]:
        """Of the training and the test examples; of image files, not of pixels, which decoders may round otherwise."""
        return tuple(split.checksum() for split in self.given or (self.train, self.test))

    @property
    def is_known(self) -> bool:
        """Whether the checksums are of all that is read, so that no code of the user's may change it unseen."""
        return True

    @property
    def units_per_example(self) -> int:
        """The number of ``unit`` in one example."""
        return 1

    @abc.abstractmethod
    def describe(self) -> str:
        """A short description for the terminal, such as "images 8x8x1, 10 classes"."""


@dataclasses.dataclass(frozen=True)
class ArraySplit(Split):
    """A split in memory: ``fields`` has the format of ``Split.read``."""

    fields: HostBatch

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def read(self, indices: np.ndarray) -> HostBatch:
        return {name: array[indices] for name, array in self.fields.items()}

    def arrays(self) -> HostBatch:
        return self.fields  # no copy

    def checksum(self) -> str:
        return checksum_of_arrays(self.fields)

    def take(self, order: np.ndarray) -> ArraySplit:
        """The examples ``order``, in that order."""
        return ArraySplit(self.read(order))


def placement(config: DataConfig, train_bytes: int) -> Placement:
    """Where a training set of ``train_bytes`` goes."""
    if config.crops_files or config.placement == "stream":
        return "stream"
    return "stream" if config.placement == "auto" and train_bytes > MEMORY_LIMIT else "device"


def chosen(config: DataConfig, splits: Iterable[Any]) -> list[Any]:
    """Training and test split, cut as ``config`` says; ``validation_fraction`` of the first may replace the second."""
    parts = []
    for split, field in zip(splits, ("train_examples", "test_examples"), strict=True):
        if (count := getattr(config, field)) > len(split):
            raise InputError(f"data.{field} is {count}: {config.name!r} has {len(split)}. Use 0 for all of them.")
        parts.append(split.take(np.random.default_rng(0).permutation(len(split))[:count]) if count else split)
    if config.validation_fraction:
        count = validation_count(config, len(parts[0]))
        order = np.random.default_rng(0).permutation(len(parts[0]))
        parts = [parts[0].take(order[count:]), parts[0].take(order[:count])]
    return parts


def validation_count(config: DataConfig, train: int) -> int:
    """How many of ``train`` examples ``validation_fraction`` holds out; `InputError` if it leaves a split empty."""
    count = round(config.validation_fraction * train)
    if config.validation_fraction and not 0 < count < train:
        raise InputError(
            f"data.validation_fraction is {config.validation_fraction:g}: of {train} training examples that holds out "
            f"{count}. Use another share, or 0 to evaluate the test set."
        )
    return count


def chance_loss(dataset: Dataset) -> float | None:
    """The entropy of the training labels in nats: the cross-entropy of the best constant guess.

    Below it a network has learned something. For balanced classes it is the logarithm of their number, for text the
    entropy of single tokens. From frequencies f_k of K labels among N it is ``-sum_k f_k log f_k + (K - 1) / (2 N)``
    (Miller, 1955, corrects the bias). ``None`` without classes, and for batches without end. Labels of images in
    memory are read whole, others from a sample.
    """
    if not dataset.num_classes or not dataset.has_epochs:
        return None
    if isinstance(dataset.train, ArraySplit) and "label" in dataset.train.fields:
        labels = dataset.train.fields["label"]
    else:
        size = len(dataset.train)
        chunk = min(size, _CHUNK)
        parts = np.linspace(0, size - 1, min(size, _LABELS) // chunk * chunk).astype(np.int64).reshape(-1, chunk)
        labels = np.concatenate([np.ravel(dataset.labels(dataset.train.read(part))) for part in parts])
    counts = np.unique(labels, return_counts=True)[1]
    frequencies = counts / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum() + (len(counts) - 1) / (2 * counts.sum()))


def spaced(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the numbers below ``count``, spaced evenly: int64."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def checksum_of_arrays(fields: Mapping[str, np.ndarray]) -> str:
    """Eight hexadecimal digits of named arrays [N, ...], by CRC-32: they find accidental changes, at several GB/s."""
    value = 0
    for name, array in sorted(fields.items()):
        value = zlib.crc32(f"{name} {array.dtype} {array.shape} ".encode(), value)
        most = len(array) if array.nbytes <= _WHOLE else max(1, _WHOLE * len(array) // array.nbytes)
        chosen = spaced(len(array), most)
        for start in range(0, len(chosen), _CHECKED):
            part = chosen[start : start + _CHECKED]
            rows = array[part[0] : part[-1] + 1] if most == len(array) else array[part]
            value = zlib.crc32(np.ascontiguousarray(rows).view(np.uint8).data, value)
    return f"{value:08x}"


def checksum_of_texts(texts: Iterable[str]) -> str:
    """Eight hexadecimal digits of texts in order, which may be paths that are not UTF-8."""
    return f"{zlib.crc32(chr(0).join(texts).encode(errors='surrogateescape')):08x}"
