"""Splits that a user gives: arrays, records with random access, and batches by seed; their examples as flat batches."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data.dataset import MEMORY_LIMIT, ArraySplit, checksum_of_arrays, checksum_of_texts, spaced
from depthmup_flax.networks.calls import calling, shapes_of
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import HostBatch

log = logging.getLogger(__name__)

_SAMPLE = 16  # records whose content is compared when a run is resumed
_MOST_READERS = 256  # seeds whose iterators stay open
_RECENT = 8  # batches of a seed that can be read again: those read ahead when a sweep continues with fewer lanes


@dataclasses.dataclass(frozen=True)
class ExampleSpec:
    """The structure of an example, and the shape and dtype of each of its arrays."""

    structure: Any  # PyTreeDef of nested pairs and dicts
    # Name -> array of one example. Names are Python's, "['image']" or "[0]['left']": none is the engine's "mask".
    fields: Mapping[str, jax.ShapeDtypeStruct]

    @classmethod
    def of(cls, arrays: HostBatch, structure: Any, batch_axes: int) -> ExampleSpec:
        """The spec of what `flatten` returned, whose arrays have 0 or 1 ``batch_axes``."""
        return cls(structure, {name: jax.ShapeDtypeStruct(x.shape[batch_axes:], x.dtype) for name, x in arrays.items()})

    @classmethod
    def of_tree(cls, example: Any) -> ExampleSpec:
        """The spec of an example, given as a tree of shapes and dtypes."""
        leaves, structure = _leaves(example)
        return cls(structure, leaves)

    def __str__(self) -> str:
        return ", ".join(f"{name} {shapes_of(x)}" for name, x in self.fields.items())

    @property
    def tree(self) -> Any:
        """One example, as shapes and dtypes."""
        return self.unflatten(self.fields)

    def unflatten(self, batch: Mapping[str, Any]) -> Any:
        """The user's pair or dict from a flat batch, which may have more fields."""
        return jax.tree.unflatten(self.structure, [batch[name] for name in self.fields])

    def zeros(self, count: int) -> HostBatch:
        """A flat batch of ``count`` empty examples."""
        return {name: np.zeros((count, *spec.shape), spec.dtype) for name, spec in self.fields.items()}

    def require(self, arrays: HostBatch, structure: Any, batch_axes: int, where: str) -> None:
        """Raises `InputError` unless what `flatten` returned has this structure, these shapes and dtypes."""
        if (given := ExampleSpec.of(arrays, structure, batch_axes)) != self:
            raise InputError(
                f"{where} has examples {given}: the first training example is {self}. Give all the same fields, shapes "
                "and dtypes."
            )


def flatten(tree: Any, where: str) -> tuple[dict[str, np.ndarray], Any]:
    """Arrays by name, and the structure, of a pair or a dict: of one example or of a batch.

    ``where`` is Python's expression for ``tree`` in messages. 64-bit numbers become 32-bit, as in JAX. `InputError` if
    the tree is neither, or has something else than numbers.
    """
    is_pair = isinstance(tree, tuple) and len(tree) == 2
    if not is_pair and not (isinstance(tree, dict) and tree and all(isinstance(key, str) for key in tree)):
        raise InputError(f"{where} is {kind_of(tree)}: it must be a pair (inputs, targets) or a dict of arrays.")
    leaves, structure = _leaves(tree)
    return {name: _numbers(leaf, where + name) for name, leaf in leaves.items()}, structure


def kind_of(value: Any) -> str:
    """What ``value`` is, for messages."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array {shapes_of(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def count(arrays: HostBatch, where: str) -> int:
    """The length that the arrays of a batch share; `InputError` for unequal ones, none or empty arrays."""
    lengths = {len(x) if x.ndim and x.size else 0 for x in arrays.values()}
    if len(lengths) != 1 or lengths == {0}:
        given = ", ".join(f"{name} {list(x.shape)}" for name, x in arrays.items())
        raise InputError(f"{where} has the shapes {given}: give arrays whose first axis is the example, of one length.")
    return lengths.pop()


def _leaves(tree: Any) -> tuple[dict[str, Any], Any]:
    """All that is no dict or tuple, by name, and the structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: not isinstance(x, (dict, tuple)))
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}, structure


def _numbers(leaf: Any, where: str) -> np.ndarray:
    try:
        array = np.asarray(leaf)
    except ValueError as error:  # lists of unequal lengths
        raise InputError(f"{where} is no array: {error}. Give numbers of one shape.") from error
    if not (array.dtype == bool or jnp.issubdtype(array.dtype, jnp.number)):
        held = type(leaf).__name__ if array.ndim == 0 else f"an array of {array.dtype}"
        raise InputError(f"{where} is {held}: it must be numbers. Convert it, or leave it out.")
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if dtype != array.dtype and array.size and np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        if array.min() < info.min or array.max() > info.max:
            raise InputError(f"{where} has {array.min()} to {array.max()}: use integers that fit into {dtype}.")
    with np.errstate(over="ignore"):  # 1e39 becomes infinite, as in JAX
        return array.astype(dtype, copy=False)


def array_split(tree: Any, where: str) -> tuple[ArraySplit, ExampleSpec]:
    """A pair or a dict of arrays in memory."""
    arrays, structure = flatten(tree, where)
    count(arrays, where)
    for name, x in arrays.items():  # a network that reads such numbers diverges
        if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
            first = np.argmin(np.isfinite(x).reshape(len(x), -1).all(-1))
            log.warning("%s%s has NaN or infinite numbers, first example %d.", where, name, first)
    return ArraySplit(arrays), ExampleSpec.of(arrays, structure, 1)


@dataclasses.dataclass(frozen=True)
class RecordSplit:
    """Records of an object with ``__len__`` and ``__getitem__``, read when asked; all have ``spec``."""

    source: Any
    where: str  # names it in errors
    spec: ExampleSpec
    order: np.ndarray  # the records that are examples

    @classmethod
    def of(cls, source: Any, where: str, spec: ExampleSpec | None = None) -> RecordSplit:
        """The split of a source whose records have ``spec``, by default that of its first record, which is read."""
        with calling(f"{where}.__len__"):
            length = len(source)
        if not 0 < length < 2**31:  # indices are int32
            raise InputError(f"{where} has {length} records: give at least one, and at most 2^31, without repetition.")
        first = spec or ExampleSpec.of(*_record(source, 0, where), 0)
        split = cls(source, where, first, np.arange(length))
        split.read(np.arange(1))  # which compares it
        return split

    def __len__(self) -> int:
        return len(self.order)

    def read(self, indices: np.ndarray) -> HostBatch:
        """See ``Split.read``; `InputError` for a record unlike the first."""
        batch = self.spec.zeros(len(indices))
        for place, index in enumerate(self.order[indices].tolist()):
            arrays, structure = _record(self.source, index, self.where)
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
                return checksum_of_texts([str(own()), f"{len(self)}"])
        return checksum_of_arrays({**self.read(spaced(len(self), _SAMPLE)), "count": np.array([len(self)])})

    def take(self, order: np.ndarray) -> RecordSplit:
        """The examples ``order``, in that order."""
        return dataclasses.replace(self, order=self.order[order])


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
        # By seed: the open iterator, the position of its next batch, and the last batches.
        self._readers: dict[int, tuple[Iterator[Any], int, collections.deque[HostBatch]]] = {}
        self._lock = threading.Lock()
        arrays, structure = self._flat(self._iterator(0), 0, 0)
        self._first_batch, self.spec = ArraySplit(arrays), ExampleSpec.of(arrays, structure, 1)
        again, _ = self._flat(self._iterator(0), 0, 0)
        if checksum_of_arrays(again) != self.checksum():
            raise InputError(
                f"{where}(0) gave two first batches that differ: batches must depend only on the seed. Create its "
                "random numbers and its iterator inside the function."
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
                f"train.batch_size={len(self)}, or change the function."
            )

    def batch(self, seed: int, step: int) -> HostBatch:
        """The batch of a training step, counted from 0; thread-safe. Skips batches, or begins again, to get there.

        `InputError` for a batch unlike the first, or if there are no more.
        """
        with self._lock:
            iterator, position, recent = self._readers.pop(seed, (None, 0, collections.deque[HostBatch]()))
            if iterator is None or step < position - len(recent):
                iterator, position, recent = self._iterator(seed), 0, collections.deque(maxlen=_RECENT)
            while step >= position:
                arrays, structure = self._flat(iterator, seed, position)
                self.spec.require(arrays, structure, 1, f"{self._where}({seed})[{position}]")
                self.require_size(count(arrays, self._where))
                recent.append(arrays)
                position += 1
            self._readers[seed] = iterator, position, recent  # the last used one; after an error it is gone
            if len(self._readers) > _MOST_READERS:
                del self._readers[next(iter(self._readers))]
            return recent[step - position]

    def _iterator(self, seed: int) -> Iterator[Any]:
        with calling(self._where, seed):
            return iter(self._batches(seed))

    def _flat(self, iterator: Iterator[Any], seed: int, step: int) -> tuple[HostBatch, Any]:
        end = object()
        with calling(f"{self._where}({seed}).__next__"):
            batch = next(iterator, end)
        if batch is end:
            raise InputError(
                f"{self._where}({seed}) ends after {step} batches: the run reads more. Yield batches without end, or "
                "train fewer steps (train.steps)."
            )
        arrays, structure = flatten(batch, f"{self._where}({seed})[{step}]")
        count(arrays, f"{self._where}({seed})[{step}]")
        return arrays, structure


def batches_in_memory(batches: Iterable[Any], spec: ExampleSpec, where: str, most_examples: int) -> ArraySplit:
    """An iterable of batches as one split, read until it has ``most_examples``, if not 0.

    `InputError` if there is none, one does not fit ``spec``, or they exceed `MEMORY_LIMIT`.
    """
    parts: list[HostBatch] = []
    held = size = 0
    with calling(f"{where}.__iter__"):
        for batch in batches:
            here = f"{where}[{len(parts)}]"
            arrays, structure = flatten(batch, here)
            spec.require(arrays, structure, 1, here)
            held += count(arrays, here)
            size += sum(x.nbytes for x in arrays.values())
            if size > MEMORY_LIMIT:
                raise InputError(f"{where} has more than {MEMORY_LIMIT >> 30} GiB, or no end: set data.test_examples.")
            parts.append(arrays)
            if 0 < most_examples <= held:
                break
    if not parts:
        raise InputError(f"{where} has no batches: give some, or None for no evaluation.")
    # `most_examples` that do not exist are refused with other limits.
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return ArraySplit({name: x[: most_examples or None] for name, x in whole.items()})
