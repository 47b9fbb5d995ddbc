"""Data of the user: what a function that ``data.name`` names returns, and inputs and targets by their ``prepare``.

A split is arrays in memory, records with random access, or batches by seed. All give flat batches of an `ExampleSpec`.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data.dataset import (
    ArraySplit,
    DataConfig,
    Dataset,
    Split,
    checksum_of_arrays,
    checksum_of_texts,
    chosen,
    placement,
    spaced,
)
from depthmup_flax.data.seen_by_loss import BatchCheck, Labels
from depthmup_flax.networks.import_paths import resolve
from depthmup_flax.networks.user_code import calling, shapes_of
from depthmup_flax.util.errors import InputError, shown
from depthmup_flax.util.program_digest import stated_version
from depthmup_flax.util.types import HostBatch

log = logging.getLogger(__name__)

# A key (None: evaluation) and the user's batch -> inputs and targets, or what their own training step reads.
UserPrepare = Callable[[jax.Array | None, Any], Any]
# Keys of a dict that is a pair of inputs and targets, in the order of the alphabet.
PAIRS = ({"inputs", "targets"}, {"image", "label"}, {"x", "y"})
_ABSTRACT = 64  # examples of the abstract batch of which shapes are read: divides into groups of any usual size
_CHUNK = 4096  # examples whose targets are prepared at a time, for the number of classes
_SAMPLE = 16  # records whose content is compared when a run is resumed
_ENDLESS = 2**40  # records; Grain's repeat() has the largest integer
_MOST_READERS = 256  # seeds whose iterators stay open
_MOST_CONSUMED = 16 * _MOST_READERS  # checksums of what was read: batches are read a few steps ahead


def pair_or_batch(key: jax.Array | None, batch: Any) -> Any:
    """The ``prepare`` of users who give none: a pair, and a dict with the keys of `PAIRS`, are inputs and targets."""
    if isinstance(batch, dict) and batch.keys() in PAIRS:
        inputs, targets = sorted(batch)
        return batch[inputs], batch[targets]
    return batch


@dataclasses.dataclass(frozen=True)
class ExampleSpec:
    """The structure of an example, and the shape and dtype of each of its arrays."""

    structure: Any  # PyTreeDef of nested pairs and dicts
    # Name -> array of one example. Names are Python's, "['image']" or "[0]['left']": none is the engine's "mask".
    fields: Mapping[str, jax.ShapeDtypeStruct]

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

    def require(self, given: ExampleSpec, where: str) -> None:
        """Raises `InputError` unless ``given`` has this structure, these shapes and dtypes."""
        if given != self:
            raise InputError(f"{where} has examples {given}: the first training example is {self}. Give all the same.")


def _of_batch(where: str, place: int) -> str:
    """An example of a batch in a sentence."""
    return f"{where}: example {place}"


def _of_split(where: str, start: int, place: int) -> str:
    """An example of a part of a split in a sentence."""
    return f"{where}[{start + place}]"


def _leaves(tree: Any) -> tuple[dict[str, Any], Any]:
    """All that is no dict or tuple, by name, and the structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: not isinstance(x, (dict, tuple)))
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}, structure


def _flat(tree: Any, where: str, batch_axes: int) -> tuple[HostBatch, ExampleSpec]:
    """A pair or dict, of an example or (``batch_axes`` 1) a batch, as arrays of 32 bits by name, and its spec."""
    if not (isinstance(tree, dict) and tree) and not (isinstance(tree, tuple) and len(tree) == 2):
        raise InputError(f"{where} is {shown(tree)}: it must be a pair (inputs, targets) or a dict of arrays.")
    leaves, structure = _leaves(tree)
    arrays = {}
    for name, leaf in leaves.items():
        array = np.asarray(leaf)
        if not (array.dtype == bool or jnp.issubdtype(array.dtype, jnp.number)):
            raise InputError(f"{where}{name} has the type {array.dtype}: it must be numbers. Convert it.")
        with np.errstate(over="ignore"):  # 1e39 becomes infinite, as in JAX
            arrays[name] = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
        narrowed = arrays[name].dtype != array.dtype and np.issubdtype(array.dtype, np.integer)
        if narrowed and not np.array_equal(arrays[name], array):
            raise InputError(f"{where}{name} has integers that do not fit into {arrays[name].dtype}. Use smaller ones.")
    if batch_axes and (len({x.shape[:1] for x in arrays.values()}) > 1 or not all(x.size for x in arrays.values())):
        given = ", ".join(f"{name} {list(x.shape)}" for name, x in arrays.items())
        raise InputError(f"{where} has the shapes {given}: give arrays whose first axis is the example, of one length.")
    fields = {name: jax.ShapeDtypeStruct(x.shape[batch_axes:], x.dtype) for name, x in arrays.items()}
    return arrays, ExampleSpec(structure, fields)


class RecordSplit(Split):
    """Records of an object with ``__len__`` and ``__getitem__``, read when asked; all are like the first."""

    def __init__(self, source: Any, where: str, order: np.ndarray | None = None) -> None:
        self._source, self._where = source, where  # which names it in errors
        if order is None:
            with calling(f"{where}.__len__"):
                order = np.arange(min(len(source), _ENDLESS) % _ENDLESS)
            if len(source) >= _ENDLESS:
                raise InputError(f"{where} has no end: leave out its repeat(), or give a function batches(seed).")
        if not len(order):
            raise InputError(f"{where} has 0 records: give at least one.")
        self._order = order  # the records that are examples
        self.check: BatchCheck | None = None
        self.spec = self._record(0)[1]

    def __len__(self) -> int:
        return len(self._order)

    def _record(self, index: int) -> tuple[HostBatch, ExampleSpec]:
        with calling(f"{self._where}.__getitem__", index):
            record = self._source[index]
        return _flat(record, f"{self._where}[{index}]", 0)

    def read(self, indices: np.ndarray) -> HostBatch:
        """See ``Split.read``; `InputError` for a record unlike the first."""
        batch = self.spec.zeros(len(indices))
        for place, index in enumerate(self._order[indices].tolist()):
            arrays, spec = self._record(index)
            self.spec.require(spec, f"{self._where}[{index}]")
            for name, x in arrays.items():
                batch[name][place] = x
        if self.check is not None:
            self.check(batch, lambda place: f"{self._where}[{self._order[indices][place]}]")
        return batch

    def checksum(self) -> str:
        """See ``Split.checksum``: what ``fingerprint()`` of the user's object returns, else of a few records."""
        if (version := self.version()) is not None:
            return checksum_of_texts([version, f"{len(self)}"])
        return checksum_of_arrays({**self.read(spaced(len(self), _SAMPLE)), "count": np.array([len(self)])})

    def version(self) -> str | None:
        """See ``Split.version``."""
        return stated_version(self._source)

    def take(self, order: np.ndarray) -> RecordSplit:
        """The examples ``order``, in that order."""
        return RecordSplit(self._source, self._where, self._order[order])


class BatchStream(ArraySplit):
    """Training batches of a user's ``batches(seed)``: functions of (seed, step), read in order of the steps.

    As a split it holds the first batch of seed 0, from which shapes and dtypes are read.
    """

    def __init__(self, batches: Callable[[int], Iterable[Any]], where: str) -> None:
        self._batches, self._where = batches, where
        # By seed: the open iterator, the position of its last batch, that batch, and the checksum of all until it.
        self._readers: dict[int, tuple[Iterator[Any], int, HostBatch, str]] = {}
        # By seed and number of batches: the checksum of these, of the last ones read, and of those of an earlier run.
        self._consumed: dict[tuple[int, int], str] = {}
        self._expected: dict[tuple[int, int], str] = {}
        self._lock = threading.Lock()
        self.check: BatchCheck | None = None
        first, self.spec = self._next(self._iterator(0), 0, 0)
        super().__init__(first)
        again, _ = self._next(self._iterator(0), 0, 0)
        if checksum_of_arrays(again) != super().checksum():
            raise InputError(f"{where}(0) gave two different first batches: create its random numbers inside it.")

    def checksum(self) -> str:
        """See ``Split.checksum``: of the first batch, and of what ``fingerprint()`` of the function returns."""
        of_first = super().checksum()
        version = self.version()
        return of_first if version is None else checksum_of_texts([of_first, version])

    def version(self) -> str | None:
        """See ``Split.version``."""
        return stated_version(self._batches)

    def require_size(self, batch_size: int) -> None:
        """Raises `InputError` unless batches have ``batch_size`` examples."""
        if batch_size != len(self):
            raise InputError(
                f"train.batch_size is {batch_size}: the batches of {self._where} have {len(self)} examples. Use "
                f"train.batch_size={len(self)}, or change the function."
            )

    def batch(self, seed: int, step: int) -> HostBatch:
        """The batch of a step, counted from 0; thread-safe. Skips batches, or begins again, to get there."""
        with self._lock:
            iterator, position, arrays, checksum = self._readers.pop(seed, (None, -1, {}, ""))
            if iterator is None or step < position:
                iterator, position, checksum = self._iterator(seed), -1, ""
            while position < step:
                position += 1
                arrays, spec = self._next(iterator, seed, position)
                self.spec.require(spec, f"{self._where}({seed})[{position}]")
                if (size := len(next(iter(arrays.values())))) != len(self):
                    given = f"{self._where}({seed})[{position}] has {size} examples"
                    raise InputError(f"{given}: the first batch has {len(self)}. Give batches of one size.")
                if self.check is not None:
                    self.check(arrays, functools.partial(_of_batch, f"{self._where}({seed})[{position}]"))
                checksum = checksum_of_texts([checksum, checksum_of_arrays(arrays)])
                self._note(seed, position + 1, checksum)
            self._readers[seed] = iterator, position, arrays, checksum  # the last used one; after an error it is gone
            if len(self._readers) > _MOST_READERS:
                del self._readers[next(iter(self._readers))]
            return arrays

    def consumed(self, seed: int, steps: int) -> str | None:
        """A checksum of the first batches of a seed, which were read not long ago; else ``None``."""
        return self._consumed.get((seed, steps))

    def expect(self, seed: int, steps: int, checksum: str) -> None:
        """Lets the first batches of a seed, when they are read, be those of an earlier run; else `InputError`."""
        self._expected[seed, steps] = checksum

    def _note(self, seed: int, steps: int, checksum: str) -> None:
        self._consumed[seed, steps] = checksum
        if len(self._consumed) > _MOST_CONSUMED:
            del self._consumed[next(iter(self._consumed))]
        if checksum != self._expected.get((seed, steps), checksum):
            raise InputError(
                f"{self._where}({seed}): its first {steps} batches are not those that were trained on. Restore the "
                "function, choose another directory, or set overwrite to start again; train.same_code resumes anyway."
            )

    def _iterator(self, seed: int) -> Iterator[Any]:
        with calling(self._where, seed):
            return iter(self._batches(seed))

    def _next(self, iterator: Iterator[Any], seed: int, step: int) -> tuple[HostBatch, ExampleSpec]:
        end = object()
        with calling(f"{self._where}({seed}).__next__"):
            batch = next(iterator, end)
        if batch is end:
            raise InputError(f"{self._where}({seed}) ends after {step} batches: yield more, or lower train.steps.")
        return _flat(batch, f"{self._where}({seed})[{step}]", 1)


@dataclasses.dataclass(frozen=True)
class UserDataset(Dataset):
    """What ``data.name = "python:<module>:<function>"`` loads; see `load_python`."""

    spec: ExampleSpec
    user_prepare: UserPrepare
    inputs: Any = None  # tree of shapes and dtypes, of one example; None unless `user_prepare` gives inputs and targets
    targets: Any = None  # likewise
    ignore_label: int | None = None  # ``data.ignore_label``
    checks: Mapping[str, BatchCheck] = dataclasses.field(default_factory=dict)  # of "train" and "test"

    unit: ClassVar[str] = "examples"

    @property
    def input_kind(self) -> str:
        x, y = self.inputs, self.targets
        if not (isinstance(x, jax.ShapeDtypeStruct) and self.has_integer_targets):
            return "arrays"
        if jnp.issubdtype(x.dtype, jnp.integer) and x.shape == y.shape and x.ndim == 1:
            return "tokens"
        pixels = x.dtype == jnp.uint8 or jnp.issubdtype(x.dtype, jnp.floating)
        return "image" if pixels and (x.ndim, y.ndim) == (3, 0) else "arrays"

    @property
    def has_integer_targets(self) -> bool:
        """Whether the targets are one array of integers."""
        return isinstance(self.targets, jax.ShapeDtypeStruct) and jnp.issubdtype(self.targets.dtype, jnp.integer)

    def prepare(self, augmentation: str, key: jax.Array | None, batch: Any) -> Any:
        """``(inputs, targets)``, trees of arrays ``[B, ...]``; what `user_prepare` gives, if that is something else."""
        examples = self.spec.unflatten(batch)
        with calling(f"prepare of {self.name}", key, examples):
            return self.user_prepare(key, examples)

    def require_labels(self, classes: int, *, tokens: bool = False) -> None:
        """Raises `InputError` for a target for which a cross-entropy of ``classes`` outputs is not bounded.

        ``tokens``: the inputs must be such classes, too. Examples that are not in memory are looked at when read.
        """
        labels = Labels(classes, self.ignore_label, tokens)
        for name, check in self.checks.items():
            if check.labels != labels:
                self._look(name, functools.partial(check.require_labels, labels=labels))
                check.labels = labels

    def require_finite(self) -> None:
        """Raises `InputError` for numbers in memory that are not finite after ``prepare``; others when read."""
        for name, check in self.checks.items():
            self._look(name, check)

    def _look(self, name: str, check: Callable[..., None]) -> None:
        """A check of the examples of a split that are in memory."""
        split = getattr(self, name)
        if type(split) is ArraySplit:
            for start in range(0, len(split), _CHUNK):
                batch = split.read(np.arange(start, min(start + _CHUNK, len(split))))
                locate = functools.partial(_of_split, f"data.name is {self.name!r}: {name}", start)
                check(batch, locate=locate)

    @property
    def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of a flat training batch."""
        size = _ABSTRACT if self.has_epochs else len(self.train)
        return {name: jax.ShapeDtypeStruct((size, *x.shape), x.dtype) for name, x in self.spec.fields.items()}

    @property
    def input_spec(self) -> Any:
        """A tree of shapes ``[1, ...]``; `InputError` if ``prepare`` gives no inputs and targets."""
        if self.inputs is None:
            raise InputError(
                f"data.name is {self.name!r}: a model needs inputs and targets [B, ...], and its examples are "
                f"{self.spec}. Return (train, test, prepare) with prepare(key, batch) -> (inputs, targets)."
            )
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), self.inputs)

    def labels(self, batch: Any) -> np.ndarray:
        return self._counted(np.asarray(self.prepare("none", None, batch)[1]))

    def _counted(self, targets: np.ndarray) -> np.ndarray:
        """The targets without those of ``data.ignore_label``."""
        return targets if self.ignore_label is None else targets[targets != self.ignore_label]

    @property
    def has_epochs(self) -> bool:
        return not isinstance(self.train, BatchStream)

    @property
    def is_known(self) -> bool:
        """See ``Dataset.is_known``: all examples are in memory, or the user states what they are."""
        splits = self.given or (self.train, self.test)
        return all(type(split) is ArraySplit or split.version() is not None for split in splits)

    def describe(self) -> str:
        """See ``Dataset.describe``: "float32[8, 8, 1], targets int32[], 10 classes"."""
        if self.inputs is None:
            return str(self.spec)
        classes = f", {self.num_classes} classes" if self.num_classes else ""
        return f"{shapes_of(self.inputs)}, targets {shapes_of(self.targets)}{classes}"


def load_python(path: str, config: DataConfig) -> UserDataset:
    """The data of ``load() -> (train, test)`` or ``(train, test, prepare)``.

    A split is a pair ``(inputs, targets)`` or a dict of arrays, whose first axis is the example; inputs and targets may
    be dicts of arrays. Or it is an object with ``__len__`` and ``__getitem__``, whose records are such pairs or dicts
    without that axis. ``train`` may be a function ``batches(seed) -> iterator of batches`` without end, ``test`` None.
    ``prepare`` is a pure ``(key, batch) -> (inputs, targets)`` in the compiled step, without key in evaluation; see
    `pair_or_batch` for the default.

    Args:
      path: of the function or of what it would return, ``"module:name"`` or a name of `register`.
      config: limits examples, and says where they are placed.
    """
    where = f"data.name is {config.name!r}"
    found = resolve(path, "the function in data.name", "my_package.data:load")
    if callable(found):
        with calling(path):
            found = found()
    train, test, prepare = (*found, None)[:3] if isinstance(found, (tuple, list)) and len(found) in (2, 3) else [0] * 3
    if prepare is not None and not callable(prepare):
        raise InputError(f"{where}: its result is {shown(found)}. Give (train, test) or (train, test, prepare).")
    train_split, spec = _split(train, f"{where}: train")
    test_split, _ = _split(test, f"{where}: test", spec)
    if isinstance(train_split, BatchStream):
        for field in ("train_examples", "validation_fraction"):
            if getattr(config, field):
                raise InputError(f"data.{field} is {getattr(config, field)}: batches(seed) have no end. Use 0.")
        if config.placement == "device":
            raise InputError("data.placement is 'device': batches(seed) have no end. Use 'auto'.")
    given = train_held, test_held = tuple(chosen(config, (train_split, test_split)))
    if config.placement == "device":
        train_held, test_held = (ArraySplit(split.arrays()) for split in given)
    in_memory = type(train_held) is ArraySplit  # and no stream
    place = placement(config, sum(x.nbytes for x in train_held.fields.values())) if in_memory else "stream"
    dataset = UserDataset(config.name, train_held, test_held, 0, place, spec, prepare or pair_or_batch, given=given)
    dataset = dataclasses.replace(dataset, ignore_label=config.ignore_label)
    inputs, targets = _prepared_specs(dataset, jax.eval_shape(lambda: jax.random.key(0)))
    if len(test_held):
        _prepared_specs(dataset, None)
    dataset = dataclasses.replace(dataset, inputs=inputs, targets=targets)
    dataset = _checked(dataset)
    highest, trained = _target_range(dataset)
    if trained and (absent := sorted(set(range(highest + 1)) - trained)):
        examples = f"{len(absent)} of {highest + 1} classes have no training example, such as {absent[0]}"
        log.warning("%s: %s. Is it a mark for no label? Then say so: data.ignore_label.", where, examples)
    return dataclasses.replace(dataset, num_classes=1 + highest)


def _split(given: Any, where: str, like: ExampleSpec | None = None) -> tuple[Any, ExampleSpec]:
    """The split that the user gives, for training or, with the spec of the training examples, for evaluation."""
    if given is None and like is not None:
        return ArraySplit(like.zeros(0)), like
    if isinstance(given, (tuple, dict)):
        arrays, spec = _flat(given, where, 1)
        split: Any = ArraySplit(arrays)
    elif hasattr(type(given), "__len__") and hasattr(type(given), "__getitem__"):
        split = RecordSplit(given, where)
        spec = split.spec
    elif callable(given) and like is None:
        split = BatchStream(given, where)
        spec = split.spec
    else:
        raise InputError(
            f"{where} is {shown(given)}: give a pair (inputs, targets) or a dict of arrays, or an object with __len__ "
            "and __getitem__; for training also a function batches(seed) that returns an iterator of batches, for "
            "evaluation None for none."
        )
    if like is not None:
        like.require(spec, where)
    return split, spec


def _prepared_specs(dataset: UserDataset, key: Any) -> tuple[Any, Any]:
    """Shapes and dtypes of one example's inputs and targets, or Nones; ``key``: its shape and dtype, or None."""
    batch = dataset.abstract_batch
    prepared = jax.eval_shape(lambda key, batch: dataset.prepare("none", key, batch), key, batch)
    if not (isinstance(prepared, (tuple, list)) and len(prepared) == 2 and all(map(jax.tree.leaves, prepared))):
        return None, None
    if len({x.shape[:1] for x in jax.tree.leaves((batch, prepared))}) > 1:
        return None, None
    inputs, targets = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), prepared)
    return inputs, targets


def _checked(dataset: UserDataset) -> UserDataset:
    """``dataset``, whose batches are looked at: those in memory now, others when they are read."""
    own = dataset.user_prepare is not pair_or_batch
    keys = {"train": jax.random.key(0), "test": None}  # training targets may be drawn, such as masked tokens
    checks = {
        name: BatchCheck(functools.partial(dataset.prepare, "none", key), compiled=own) for name, key in keys.items()
    }
    for name, check in checks.items():
        split = getattr(dataset, name)
        if isinstance(split, (RecordSplit, BatchStream)):
            split.check = check
    dataset = dataclasses.replace(dataset, checks=checks)
    dataset.require_finite()
    return dataset


def _target_range(dataset: UserDataset) -> tuple[int, set[int]]:
    """The largest target, or token, in memory; and of one target an example, those of training.

    -1 for other targets than integers, or if the examples are read in training. `InputError` if all are ignored.
    """
    found: list[int] = []
    trained: set[int] = set()
    for name, split in (("train", dataset.train), ("test", dataset.test)):
        if dataset.has_integer_targets and type(split) is ArraySplit:
            counted = 0
            for start in range(0, len(split), _CHUNK):
                batch = {name: x[start : start + _CHUNK] for name, x in split.fields.items()}
                inputs, targets = map(np.asarray, dataset.prepare("none", None, batch))
                labels = dataset._counted(targets)
                for x in (inputs, labels) if dataset.input_kind == "tokens" else (labels,):
                    found += [int(x.max())] if x.size else []
                counted += labels.size
                if split is dataset.train and targets.ndim == 1:
                    trained |= set(np.unique(labels).tolist())
            if len(split) and not counted:
                raise InputError(
                    f"data.ignore_label is {dataset.ignore_label}: all targets of {name} are, and their mean would "
                    "be 0. Give examples with labels, or None for no test."
                )
    return max(found, default=-1), trained
