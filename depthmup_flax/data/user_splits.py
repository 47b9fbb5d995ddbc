"""Splits that a user gives: arrays, records with random access, and batches by seed."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from depthmup_flax.data.checksums import of_arrays, of_texts, spaced
from depthmup_flax.data.dataset import ArraySplit
from depthmup_flax.data.example_spec import ExampleSpec, count, flatten, kind_of
from depthmup_flax.networks.calls import calling
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import HostBatch

_MOST_EXAMPLES = 2**31 - 1  # indices are int32
_SAMPLE = 16  # records whose content is compared when a run is resumed
_MOST_READERS = 256  # seeds whose iterators stay open
_RECENT = 8  # batches of a seed that can be read again: those read ahead when a sweep continues with fewer lanes


def array_split(tree: Any, where: str) -> tuple[ArraySplit, ExampleSpec]:
    """A pair or a dict of arrays in memory."""
    arrays, structure = flatten(tree, where)
    count(arrays, where)
    return ArraySplit(arrays), ExampleSpec.of(arrays, structure, 1)


@dataclasses.dataclass(frozen=True)
class RecordSplit:
    """Records of an object with ``__len__`` and ``__getitem__``, read when asked."""

    source: Any
    where: str  # names it in errors
    spec: ExampleSpec
    order: np.ndarray | None = None  # the records that are examples; None is all

    @classmethod
    def of(cls, source: Any, where: str, spec: ExampleSpec | None = None) -> RecordSplit:
        """The split of a source whose records have ``spec``, by default that of its first record, which is read."""
        with calling(f"{where}.__len__"):
            length = len(source)
        if not 0 < length <= _MOST_EXAMPLES:
            hint = "Give it without repetition." if length else "Give at least one."
            raise InputError(f"{where} has {length} records: use 1 to {_MOST_EXAMPLES}. {hint}")
        arrays, structure = _record(source, 0, where)
        if spec is None:
            spec = ExampleSpec.of(arrays, structure, 0)
        spec.require(arrays, structure, 0, f"{where}[0]")
        return cls(source, where, spec)

    def __len__(self) -> int:
        return len(self.source) if self.order is None else len(self.order)

    def read(self, indices: np.ndarray) -> HostBatch:
        """See ``Split.read``; `InputError` for a record unlike the first."""
        batch = self.spec.zeros(len(indices))
        for place, index in enumerate(indices if self.order is None else self.order[indices]):
            arrays, structure = _record(self.source, int(index), self.where)
            self.spec.require(arrays, structure, 0, f"{self.where}[{index}]")
            for name, x in arrays.items():
                batch[name][place] = x
        return batch

    def arrays(self) -> HostBatch:
        """See ``Split.arrays``; reads all records."""
        return self.read(np.arange(len(self)))

    def checksum(self) -> str:
        """See ``Split.checksum``: what ``fingerprint()`` of the user's object returns, else of a few records."""
        own = getattr(self.source, "fingerprint", None)
        if callable(own):
            with calling(f"{self.where}.fingerprint"):
                return of_texts([str(own()), f"{len(self)}"])
        return of_arrays({**self.read(spaced(len(self), _SAMPLE)), "count": np.array([len(self)])})

    def take(self, order: np.ndarray) -> RecordSplit:
        """The examples ``order``, in that order."""
        return dataclasses.replace(self, order=order if self.order is None else self.order[order])


def _record(source: Any, index: int, where: str) -> tuple[HostBatch, Any]:
    with calling(f"{where}.__getitem__", index):
        record = source[index]
    return flatten(record, f"{where}[{index}]")


class BatchStream:
    """Training batches of a user's ``batches(seed)``: functions of (seed, step), read in order of the steps.

    As a split it holds the first batch of seed 0, from which shapes and dtypes are read.
    """

    def __init__(self, batches: Callable[[int], Iterable[Any]], where: str) -> None:
        self._batches, self._where = batches, where
        self._readers: collections.OrderedDict[int, _Reader] = collections.OrderedDict()
        self._lock = threading.Lock()
        arrays, structure = self._first()
        self._first_batch = ArraySplit(arrays)
        self.spec = ExampleSpec.of(arrays, structure, 1)
        again, _ = self._first()
        for name, x in arrays.items():
            if not np.array_equal(x, again[name], equal_nan=x.dtype.kind in "fc"):
                raise InputError(
                    f"{where}(0) gave two first batches that differ in {name}: batches must depend only on the seed. "
                    "Create its random numbers and its iterator inside the function."
                )

    def __len__(self) -> int:
        return len(self._first_batch)

    def read(self, indices: np.ndarray) -> HostBatch:
        """Examples of the first batch of seed 0."""
        return self._first_batch.read(indices)

    def arrays(self) -> HostBatch:
        """The first batch of seed 0."""
        return self._first_batch.arrays()

    def checksum(self) -> str:
        """See ``Split.checksum``: of the first batch of seed 0."""
        return self._first_batch.checksum()

    def require_size(self, batch_size: int) -> None:
        """Raises `InputError` unless batches have ``batch_size`` examples."""
        if batch_size != len(self):
            raise InputError(
                f"train.batch_size is {batch_size}: the batches of {self._where} have {len(self)} examples. Use "
                f"--config.train.batch_size={len(self)}, or change the function."
            )

    def batch(self, seed: int, step: int) -> HostBatch:
        """The batch of a training step, counted from 0; thread-safe. Skips batches, or begins again, to get there.

        Raises:
          InputError: a batch unlike the first, or no more batches.
          UserCodeError: the user's function fails.
        """
        with self._lock:
            reader = self._readers.pop(seed, None)
            if reader is None or not reader.can_read(step):
                reader = _Reader(self._iterator(seed))
            while step >= reader.position:
                reader.append(self._next(reader.iterator, seed, reader.position))
            self._readers[seed] = reader  # the last used one; after an error it is gone
            if len(self._readers) > _MOST_READERS:
                self._readers.popitem(last=False)
            return reader.recent[step - reader.position]

    def _first(self) -> tuple[HostBatch, Any]:
        arrays, structure = flatten(self._raw(self._iterator(0), 0, 0), f"{self._where}(0)[0]")
        count(arrays, f"{self._where}(0)[0]")
        return arrays, structure

    def _iterator(self, seed: int) -> Iterator[Any]:
        with calling(self._where, seed):
            batches = self._batches(seed)
        if not hasattr(type(batches), "__iter__"):
            raise InputError(f"{self._where}({seed}) is {kind_of(batches)}: return an iterator of batches.")
        with calling(f"{self._where}({seed}).__iter__"):
            return iter(batches)

    def _raw(self, iterator: Iterator[Any], seed: int, step: int) -> Any:
        end = object()
        with calling(f"{self._where}({seed}).__next__"):
            batch = next(iterator, end)
        if batch is end:
            raise InputError(
                f"{self._where}({seed}) ends after {step} batches: the run reads more. Yield batches without end, or "
                "train fewer steps (train.steps)."
            )
        return batch

    def _next(self, iterator: Iterator[Any], seed: int, step: int) -> HostBatch:
        where = f"{self._where}({seed})[{step}]"
        arrays, structure = flatten(self._raw(iterator, seed, step), where)
        self.spec.require(arrays, structure, 1, where)
        if (size := count(arrays, where)) != len(self):
            raise InputError(f"{where} has {size} examples: the first batch has {len(self)}. Drop incomplete batches.")
        return arrays


class _Reader:
    """The batches of a seed from an open iterator."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator = iterator
        self.position = 0  # of the next batch
        self.recent: collections.deque[HostBatch] = collections.deque(maxlen=_RECENT)

    def can_read(self, step: int) -> bool:
        """Whether the batch of ``step`` is yet to come, or recent."""
        return step >= self.position - len(self.recent)

    def append(self, batch: HostBatch) -> None:
        """Adds the next batch."""
        self.recent.append(batch)
        self.position += 1


def batches_in_memory(
    batches: Iterable[Any], spec: ExampleSpec, where: str, most_examples: int, limit_mib: int
) -> ArraySplit:
    """An iterable of batches as one split, read until it has ``most_examples``, if not 0.

    Raises:
      InputError: there is none, one does not fit ``spec``, or they exceed ``limit_mib``.
    """
    parts: list[HostBatch] = []
    held = size = 0
    with calling(f"{where}.__iter__"):
        iterator = iter(batches)
    end = object()
    while not most_examples or held < most_examples:
        here = f"{where}[{len(parts)}]"
        with calling(f"{where}.__next__"):
            batch = next(iterator, end)
        if batch is end:
            break
        arrays, structure = flatten(batch, here)
        spec.require(arrays, structure, 1, here)
        held += count(arrays, here)
        size += sum(x.nbytes for x in arrays.values())
        if size > limit_mib * 2**20:
            raise InputError(
                f"data.device_limit_mib is {limit_mib}: {where} is larger, or has no end. Set "
                "data.test_examples, or raise the limit."
            )
        parts.append(arrays)
    if not parts:
        raise InputError(f"{where} has no batches: give some, or None for no evaluation.")
    # `most_examples` that do not exist are refused with other limits.
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return ArraySplit({name: x[: most_examples or None] for name, x in whole.items()})
