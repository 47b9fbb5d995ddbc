"""Data of the user: what a function that ``data.name`` names returns, and inputs and targets by their ``prepare``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data.dataset import (
    ArraySplit,
    DataConfig,
    Dataset,
    Placement,
    Split,
    limited,
    placement,
    with_validation,
)
from depthmup_flax.data.user_splits import (
    BatchStream,
    ExampleSpec,
    RecordSplit,
    array_split,
    batches_in_memory,
    kind_of,
)
from depthmup_flax.networks.calls import calling, shapes_of
from depthmup_flax.networks.named import resolve
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Batch

# A key (None: evaluation) and the user's batch -> inputs and targets, or what their own training step reads.
UserPrepare = Callable[[jax.Array | None, Any], Any]
# Keys of a dict that is a pair of inputs and targets.
PAIRS = (("inputs", "targets"), ("image", "label"), ("x", "y"))
# Examples of the abstract batch from which `prepared_specs` reads shapes. It divides into groups of any usual size.
_ABSTRACT = 64
_CHUNK = 4096  # examples whose targets are prepared at a time, for the number of classes


def pair_or_batch(key: jax.Array | None, batch: Any) -> Any:
    """The ``prepare`` of users who give none: a pair, and a dict with the keys of `PAIRS`, are inputs and targets."""
    if isinstance(batch, dict):
        for inputs, targets in PAIRS:
            if batch.keys() == {inputs, targets}:
                return batch[inputs], batch[targets]
    return batch


@dataclasses.dataclass(frozen=True)
class UserDataset(Dataset):
    """What ``data.name = "python:<module>:<function>"`` loads; see `load_python`."""

    spec: ExampleSpec
    user_prepare: UserPrepare
    inputs: Any  # tree of shapes and dtypes, of one example; None if `user_prepare` does not give inputs and targets
    targets: Any  # likewise
    lowest_target: int = 0  # of the integers from which `num_classes` is known

    unit: ClassVar[str] = "examples"

    @property
    def input_kind(self) -> str:
        """See the base class."""
        if not all(isinstance(tree, jax.ShapeDtypeStruct) for tree in (self.inputs, self.targets)):
            return "arrays"
        if not jnp.issubdtype(self.targets.dtype, jnp.integer):
            return "arrays"
        pixels = self.inputs.dtype == jnp.uint8 or jnp.issubdtype(self.inputs.dtype, jnp.floating)
        if pixels and (len(self.inputs.shape), len(self.targets.shape)) == (3, 0):
            return "image"
        tokens = jnp.issubdtype(self.inputs.dtype, jnp.integer)
        return "tokens" if tokens and self.inputs.shape == self.targets.shape and self.inputs.ndim == 1 else "arrays"

    def prepare(self, augmentation: str, key: jax.Array | None, batch: Batch) -> Any:
        """``(inputs, targets)``, trees of arrays ``[B, ...]``; what `user_prepare` gives, if that is something else."""
        examples = self.spec.unflatten(batch)
        with calling(f"prepare of {self.name}", key, examples):
            return self.user_prepare(key, examples)

    @property
    def input_spec(self) -> Any:
        """A tree of shapes ``[1, ...]``; `InputError` if ``prepare`` gives no inputs and targets."""
        if self.inputs is None:
            given = shapes_of(_traced_prepare(self, _ABSTRACT, None))
            raise InputError(
                f"data.name is {self.name!r}: a model needs inputs and targets [B, ...], but {_ABSTRACT} examples of "
                f"{self.spec} are {given}. Return (train, test, prepare) with prepare(key, batch) -> (inputs, targets)."
            )
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), self.inputs)

    def labels(self, batch: Any) -> jax.Array:
        """See the base class."""
        return self.prepare("none", None, batch)[1]

    @property
    def has_epochs(self) -> bool:
        """See the base class."""
        return not isinstance(self.train, BatchStream)

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
    without that axis. ``train`` may be a function ``batches(seed) -> iterator of batches`` without end, ``test`` an
    iterable of batches, which is read into memory, or None. ``prepare`` is a pure ``(key, batch) -> (inputs,
    targets)`` in the compiled step, without key in evaluation; see `pair_or_batch` for the default.

    Args:
      path: of the function or of what it would return, ``"module:name"`` or a name of `register`.
      config: limits examples, and says where they are placed.

    Raises:
      InputError: something else is returned.
      UserCodeError: the user's code fails.
    """
    where = f"data.name is {config.name!r}"
    found = resolve(path, "the function in data.name", "my_package.data:load")
    if callable(found):
        with calling(path):
            found = found()
    if not (isinstance(found, (tuple, list)) and len(found) in (2, 3)):
        raise InputError(
            f"{where}: its result is {kind_of(found)}. It must be (train, test) or (train, test, prepare)."
        )
    train, test, prepare = (*found, None)[:3]
    if prepare is not None and not callable(prepare):
        raise InputError(
            f"{where}: prepare is {kind_of(prepare)}. It must be a function prepare(key, batch) -> (inputs, targets)."
        )
    train_split, spec = _train_split(train, f"{where}: train")
    test_split = _test_split(test, spec, f"{where}: test", config)
    if isinstance(train_split, BatchStream):
        for field in ("train_examples", "validation_fraction"):
            if getattr(config, field):
                raise InputError(f"data.{field} is {getattr(config, field)}: batches(seed) have no end. Use 0.")
        if config.placement == "device":
            raise InputError("data.placement is 'device': batches(seed) have no end. Use 'auto'.")
        _, test_split = limited(config, (ArraySplit(spec.zeros(0)), test_split))
        return user_dataset(config.name, train_split, test_split, spec, "stream", prepare)
    given = train_split, test_split = with_validation(config, limited(config, (train_split, test_split)))
    if config.placement == "device":
        train_split, test_split = ArraySplit(train_split.arrays()), ArraySplit(test_split.arrays())
    place: Placement = "stream"
    if isinstance(train_split, ArraySplit):
        place = placement(config, sum(x.nbytes for x in train_split.fields.values()))
    dataset = user_dataset(config.name, train_split, test_split, spec, place, prepare)
    return dataclasses.replace(dataset, given=tuple(given))


def _train_split(train: Any, where: str) -> tuple[ArraySplit | RecordSplit | BatchStream, ExampleSpec]:
    if isinstance(train, (tuple, dict)):
        return array_split(train, where)
    split: RecordSplit | BatchStream
    if _is_source(train):
        split = RecordSplit.of(train, where)
    elif callable(train):
        split = BatchStream(train, where)
    else:
        raise InputError(
            f"{where} is {kind_of(train)}: give a pair (inputs, targets) or a dict of arrays, an object with __len__ "
            "and __getitem__, or a function batches(seed) that returns an iterator of batches."
        )
    return split, split.spec


def _test_split(test: Any, spec: ExampleSpec, where: str, config: DataConfig) -> ArraySplit | RecordSplit:
    if test is None:
        return ArraySplit(spec.zeros(0))
    if isinstance(test, (tuple, dict)):
        arrays, own = array_split(test, where)
        spec.require(arrays.fields, own.structure, 1, where)
        return arrays
    if _is_source(test):
        return RecordSplit.of(test, where, spec)
    if hasattr(type(test), "__iter__") and not isinstance(test, (str, np.ndarray, jax.Array)):
        return batches_in_memory(test, spec, where, config.test_examples)
    raise InputError(
        f"{where} is {kind_of(test)}: give a pair (inputs, targets) or a dict of arrays, an object with __len__ and "
        "__getitem__, an iterable of batches, or None for no evaluation."
    )


def _is_source(split: Any) -> bool:
    """Whether its examples can be read by index."""
    kind = type(split)
    is_other = isinstance(split, (str, bytes)) or hasattr(split, "dtype")
    return hasattr(kind, "__len__") and hasattr(kind, "__getitem__") and not is_other


def user_dataset(
    name: str, train: Split, test: Split, spec: ExampleSpec, placement: Placement, prepare: UserPrepare | None
) -> UserDataset:
    """The data set of splits whose examples have ``spec``; `prepare` is traced for training, and for a test split."""
    dataset = UserDataset(name, train, test, 0, placement, spec, prepare or pair_or_batch, None, None)
    size = len(train) if isinstance(train, BatchStream) else _ABSTRACT
    inputs, targets = prepared_specs(dataset, size, jax.eval_shape(lambda: jax.random.key(0)))
    if len(test):
        prepared_specs(dataset, size, None)
    dataset = dataclasses.replace(dataset, inputs=inputs, targets=targets)
    lowest, highest = _target_range(dataset)
    return dataclasses.replace(dataset, num_classes=1 + highest, lowest_target=lowest)


def prepared_specs(dataset: UserDataset, size: int, key: Any) -> tuple[Any, Any]:
    """Shapes and dtypes of one example's inputs and targets, or Nones if ``prepare`` gives other things.

    Args:
      dataset: whose ``prepare`` is traced.
      size: of the batch, B.
      key: its shape and dtype; None as in evaluation.
    """
    prepared = _traced_prepare(dataset, size, key)
    if not (isinstance(prepared, (tuple, list)) and len(prepared) == 2 and all(map(jax.tree.leaves, prepared))):
        return None, None
    if any(x.ndim == 0 or x.shape[0] != size for x in jax.tree.leaves(prepared)):
        return None, None
    inputs, targets = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), prepared)
    return inputs, targets


def _traced_prepare(dataset: UserDataset, size: int, key: Any) -> Any:
    batch = {name: jax.ShapeDtypeStruct((size, *x.shape), x.dtype) for name, x in dataset.spec.fields.items()}
    if key is None:
        return jax.eval_shape(lambda batch: dataset.prepare("none", None, batch), batch)
    return jax.eval_shape(lambda key, batch: dataset.prepare("none", key, batch), key, batch)


def _target_range(dataset: UserDataset) -> tuple[int, int]:
    """The lowest and the largest target, or token, in memory.

    (0, -1) for other targets than integers, or if the examples are read in training.
    """
    targets, kind = dataset.targets, dataset.input_kind
    if not isinstance(targets, jax.ShapeDtypeStruct) or not jnp.issubdtype(targets.dtype, jnp.integer):
        return 0, -1

    def extremes(batch: Mapping[str, Any]) -> Any:
        inputs, targets = dataset.prepare("none", None, batch)
        return [x for one in ([inputs, targets] if kind == "tokens" else [targets]) for x in (one.min(), one.max())]

    is_own = dataset.user_prepare is not pair_or_batch
    extremes_in = jax.jit(extremes) if is_own else extremes  # which then only looks at NumPy's arrays
    found: list[int] = []
    for split in (dataset.train, dataset.test):
        if isinstance(split, ArraySplit):
            size = _CHUNK if is_own else max(1, len(split))
            for start in range(0, len(split), size):
                batch = {name: x[start : start + size] for name, x in split.fields.items()}
                found += map(int, extremes_in(batch))
    return min(found, default=0), max(found, default=-1)
