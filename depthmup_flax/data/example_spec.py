"""Examples of a user: pairs ``(inputs, targets)`` or dicts, as the flat batches that the engine moves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import HostBatch


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
        if structure != self.structure:
            given, wanted = (", ".join(names) for names in (arrays, self.fields))
            raise InputError(
                f"{where} has the fields {given}: the first training example has {wanted}. Give all the same fields."
            )
        for name, spec in self.fields.items():
            x = arrays[name]
            if (x.shape[batch_axes:], x.dtype) != (spec.shape, spec.dtype):
                given, wanted = (f"{a.dtype}{list(s)}" for a, s in ((x, x.shape[batch_axes:]), (spec, spec.shape)))
                raise InputError(
                    f"{where}{name} is {given} in each example: the first training example has {wanted}. Give all "
                    "examples the same shape and dtype."
                )


def flatten(tree: Any, where: str) -> tuple[dict[str, np.ndarray], Any]:
    """Arrays by name, and the structure, of a pair or a dict: of one example or of a batch.

    ``where`` is Python's expression for ``tree`` in messages. 64-bit numbers become 32-bit, as in JAX.

    Raises:
      InputError: it is neither, or has something else than numbers.
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
        return f"an array {value.dtype}{list(value.shape)}"
    if isinstance(value, dict):
        return "an empty dict" if not value else f"a dict with the keys {', '.join(map(repr, value))}"
    return "None" if value is None else f"a {type(value).__name__}"


def count(arrays: HostBatch, where: str) -> int:
    """The length that the arrays of a batch share; `InputError` for unequal ones, none or empty arrays."""
    for name, x in arrays.items():
        if x.ndim == 0 or x.size == 0:
            raise InputError(f"{where}{name} has shape {list(x.shape)}: give an array whose first axis is the example.")
    lengths = {name: len(x) for name, x in arrays.items()}
    if len(set(lengths.values())) != 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items()) or "no arrays"
        raise InputError(f"{where} has {shown}: give arrays with one number of examples.")
    return next(iter(lengths.values()))


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
    if dtype == array.dtype:
        return array
    if array.size and np.issubdtype(dtype, np.integer):
        low, high, info = array.min(), array.max(), np.iinfo(dtype)
        if low < info.min or high > info.max:
            raise InputError(f"{where} has {high if high > info.max else low}: use integers that fit into {dtype}.")
    with np.errstate(over="ignore"):  # 1e39 becomes infinite, as in JAX
        return array.astype(dtype)
