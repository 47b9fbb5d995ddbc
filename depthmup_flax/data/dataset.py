"""What a data set is: the fields that name it, two splits with random access, and inputs and labels from a batch."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Literal, Protocol

import jax
import numpy as np

from depthmup_flax.data.checksums import of_arrays
from depthmup_flax.util.types import Batch, HostBatch

Placement = Literal["device", "stream"]
Evaluated = Literal["test", "validation"]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The fields of ``config.data``; see ``load``."""

    # The data set: digits | synthetic | tfds:<set> | folder:<dir> | text:<file> | python:<module>:<function>
    name: str = "digits"
    data_dir: str = ""  # where TFDS sets are prepared; "" is TFDS's default
    image_size: int = 0  # side in pixels; 0 keeps the data's own size
    augment: str = "none"  # images: none | cifar | imagenet | resized_crop; text: none | shift; python: none
    placement: str = "auto"  # of examples: auto | device, all in memory | stream, read during training
    device_limit_mib: int = 2048  # placement auto streams training sets that are larger
    train_examples: int = 0  # training examples to keep; 0 is all
    test_examples: int = 0  # test examples to keep; 0 is all
    # Share of the training examples that is evaluated in place of the test set, and not trained on; 0: the test set.
    validation_fraction: float = 0.0
    context: int = 64  # text: tokens that a model sees
    tokenizer: str = "char"  # text: char | byte
    suffixes: str = "jpg,jpeg,png"  # folder: names of files that are read, in any case
    on_bad_example: str = "error"  # image files that cannot be decoded: error | skip
    read_threads: int = 0  # threads that decode images; 0 is one for each core that the process may use


DATA_DEFAULTS = dataclasses.asdict(DataConfig())


class Split(Protocol):
    """The examples of one split, numbered from 0."""

    def __len__(self) -> int:
        """The number of examples."""

    def read(self, indices: np.ndarray) -> HostBatch:
        """The examples ``indices`` [B] as arrays with a leading axis B; thread-safe.

        Images: ``{"image": [B, H, W, C], "label": int32 [B]}``, uint8 or float32 in 0..255. Text:
        ``{"tokens": [B, W]}``, unsigned integers. Data of a user: see ``example_spec``.
        """

    def arrays(self) -> HostBatch:
        """The whole split in memory, in order, in the format of ``read``."""

    def checksum(self) -> str:
        """Eight hexadecimal digits, which differ if examples have changed."""


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

    unit: ClassVar[str]  # of throughput: "images", "tokens" or "examples"

    @property
    @abc.abstractmethod
    def input_kind(self) -> str:
        """What a model of ours must read: "image" or "tokens"; "arrays" if none does."""

    @abc.abstractmethod
    def prepare(self, augmentation: str, key: jax.Array | None, batch: Batch) -> Any:
        """The model's inputs ``[B, ...]`` and labels, int32 ``[B, ...]``; for use inside a jitted step.

        ``batch`` has the format of ``Split.read``. ``augmentation`` is ``data.augment``; it is off without ``key``.
        """

    @property
    @abc.abstractmethod
    def input_spec(self) -> Any:
        """Shape and type of the prepared input of one example, with a leading axis of 1; of a user a tree of them."""

    @property
    def has_epochs(self) -> bool:
        """Whether the training examples are a set, of which an epoch reads each once; else ``train.steps`` counts."""
        return True

    @property
    def train_size(self) -> str:
        """The number of training examples, for the terminal."""
        return f"{len(self.train):,}" if self.has_epochs else "endless"

    @property
    def bad_examples(self) -> np.ndarray:
        """Which examples of the source this process found bad: bool; empty unless ``data.on_bad_example`` is "skip"."""
        return np.zeros(0, bool)

    @property
    def checksums(self) -> tuple[str, ...]:
        """Of the training and the test examples: of all that are arrays in memory, of some that are read when asked."""
        return self.train.checksum(), self.test.checksum()

    @property
    def units_per_example(self) -> int:
        """The number of ``unit`` in one example."""
        return 1

    @abc.abstractmethod
    def describe(self) -> str:
        """A short description for the terminal, such as "images 8x8x1, 10 classes"."""


@dataclasses.dataclass(frozen=True)
class ArraySplit:
    """A split in memory: ``fields`` has the format of ``Split.read``."""

    fields: HostBatch

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def read(self, indices: np.ndarray) -> HostBatch:
        """See ``Split.read``."""
        return {name: array[indices] for name, array in self.fields.items()}

    def arrays(self) -> HostBatch:
        """See ``Split.arrays``; makes no copy."""
        return self.fields

    def checksum(self) -> str:
        """See ``Split.checksum``; of all examples."""
        return of_arrays(self.fields)

    def take(self, order: np.ndarray) -> ArraySplit:
        """The examples ``order``, in that order."""
        return ArraySplit(self.read(order))
