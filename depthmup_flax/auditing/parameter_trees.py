"""Trees of parameters, in the boxes of any library: their paths and shapes."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.rule.info_trees import is_nnx, path_name
from depthmup_flax.rule.parametrization import ParamInfo
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree

# A parameter in a tree: an array, its shape, a number, a Linen box or an nnx.Variable.
Leaf: TypeAlias = Any


def flatten(tree: ArrayTree, argument: str) -> tuple[dict[str, Leaf], jax.tree_util.PyTreeDef]:
    """Path -> leaf, and the structure around the leaves.

    Args:
      tree: parameters, or an NNX module, whose parameters are taken.
      argument: the name of the tree in errors.

    Raises:
      InputError: the tree has no parameters, or others than parameters.
    """
    if is_nnx(tree, "Module"):
        from flax import nnx

        tree = nnx.state(tree, nnx.Param)
    elif isinstance(tree, Mapping) and not is_nnx(tree, "State") and "params" in tree:
        right = "pass variables['params'], not all variables."
        raise InputError(f"{argument} has an entry 'params': {right}")
    flat, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_box)
    leaves = {path_name(path): leaf for path, leaf in flat}
    if not leaves:
        right = "pass the tree that the optimizer will train."
        raise InputError(f"{argument} has no parameters: {right}")
    for path, leaf in leaves.items():
        _require_parameter(argument, path, leaf)
    return leaves, structure


def _is_box(x: object) -> bool:
    """Whether ``x`` is a box of Linen or NNX around an array."""
    return isinstance(x, nn.meta.AxisMetadata) or is_nnx(x, "Variable")


def _require_parameter(argument: str, path: str, leaf: Leaf) -> None:
    """Raises `InputError` for a state, such as a running average, and for what is no array."""
    value = value_of(leaf)
    is_state = is_nnx(leaf, "RngState", "BatchStat")
    is_number = hasattr(value, "shape") or isinstance(value, numbers.Number)
    if is_number and not is_state:
        return
    kind = type(leaf if is_state else value).__name__
    raise InputError(
        f"{argument} has a {kind} at {path!r}: pass parameters alone, as in nnx.state(model, "
        "nnx.Param), or their shapes."
    )


def value_of(leaf: Leaf) -> Any:
    """The array in a leaf of `flatten`."""
    return jax.tree.leaves(leaf)[0]


def shape_of(leaf: Leaf | ParamInfo) -> tuple[int, ...]:
    """The shape of a leaf of `flatten`, or of a `ParamInfo`."""
    array = leaf if isinstance(leaf, ParamInfo) else value_of(leaf)
    return tuple(np.shape(array))


def abstract(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """Shape and type of a leaf of `flatten`."""
    return jax.ShapeDtypeStruct(shape_of(leaf), getattr(value_of(leaf), "dtype", jnp.float32))
