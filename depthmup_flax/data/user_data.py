"""The data set of a user: their splits, and inputs and targets by their ``prepare``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from depthmup_flax.data.dataset import ArraySplit, Dataset, Placement, Split
from depthmup_flax.data.example_spec import ExampleSpec
from depthmup_flax.data.user_splits import BatchStream
from depthmup_flax.networks.calls import calling, shapes_of
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
    """What ``data.name = "python:<module>:<function>"`` loads; see ``sources.python``."""

    spec: ExampleSpec
    user_prepare: UserPrepare
    inputs: Any  # tree of shapes and dtypes, of one example; None if `user_prepare` does not give inputs and targets
    targets: Any  # likewise
    lowest_target: int = 0  # of the integers from which `num_classes` is known
    given: tuple[Split, ...] = ()  # both splits as the user gave them, if `placement` has changed them

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
        """``(inputs, targets)``, trees of arrays ``[B, ...]``; what `user_prepare` gives, if that is something else.

        Raises:
          UserCodeError: `user_prepare` fails.
        """
        examples = self.spec.unflatten(batch)
        with calling(f"prepare of {self.name}", key, examples):
            return self.user_prepare(key, examples)

    @property
    def checksums(self) -> tuple[str, ...]:
        """See the base class."""
        return tuple(split.checksum() for split in self.given or (self.train, self.test))

    @property
    def input_spec(self) -> Any:
        """A tree of shapes ``[1, ...]``; `InputError` if ``prepare`` gives no inputs and targets."""
        if self.inputs is None:
            raise InputError(f"data.name is {self.name!r}: a model needs inputs and targets [B, ...]. {self._given()}")
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), self.inputs)

    def _given(self) -> str:
        """What is given in place of inputs and targets, and the remedy."""
        if self.user_prepare is pair_or_batch:
            fields = ", ".join(self.spec.fields)
            return f"A batch has {fields}: return (train, test, prepare) with prepare(key, batch) -> (inputs, targets)."
        result = shapes_of(_traced_prepare(self, _ABSTRACT, None))
        return f"Its prepare gives {result} for a batch of {_ABSTRACT}: return a pair (inputs, targets) there."

    @property
    def has_epochs(self) -> bool:
        """See the base class."""
        return not isinstance(self.train, BatchStream)

    def describe(self) -> str:
        """See ``Dataset.describe``: "float32[8, 8, 1], targets int32[], 10 classes"."""
        if self.inputs is None:
            return ", ".join(f"{name} {shapes_of(x)}" for name, x in self.spec.fields.items())
        classes = f", {self.num_classes} classes" if self.num_classes else ""
        return f"{shapes_of(self.inputs)}, targets {shapes_of(self.targets)}{classes}"


def user_dataset(
    name: str, train: Split, test: Split, spec: ExampleSpec, placement: Placement, prepare: UserPrepare | None
) -> UserDataset:
    """The data set of splits whose examples have ``spec``.

    Raises:
      InputError, UserCodeError: ``prepare`` cannot be used for training, or for evaluation if there is a test split.
    """
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
