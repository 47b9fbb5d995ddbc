"""Parameter trees of models without annotations: their paths, shapes, and globs of paths."""

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
from depthmup_flax.util.groups import series as series  # `trees.series`
from depthmup_flax.util.types import ArrayTree

# A parameter in a tree: an array, its shape, a number, a Linen box or an nnx.Variable.
Leaf: TypeAlias = Any


def flatten(tree: ArrayTree, argument: str) -> tuple[dict[str, Leaf], jax.tree_util.PyTreeDef]:
    """Path -> leaf, and the structure around the leaves; ``argument`` names the tree in errors."""
    if is_nnx(tree, "Module"):
        from flax import nnx

        tree = nnx.state(tree, nnx.Param)
    elif isinstance(tree, Mapping) and not is_nnx(tree, "State") and "params" in tree:
        raise InputError(f"{argument} has an entry 'params': pass variables['params'], not all variables.")
    is_box = lambda x: isinstance(x, nn.meta.AxisMetadata) or is_nnx(x, "Variable")
    flat, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_box)
    leaves = {path_name(path): leaf for path, leaf in flat}
    if not leaves:
        raise InputError(f"{argument} has no parameters: pass the tree that the optimizer will train.")
    for path, leaf in leaves.items():
        value, is_state = value_of(leaf), is_nnx(leaf, "RngState", "BatchStat")
        if is_state or not (hasattr(value, "shape") or isinstance(value, numbers.Number)):
            kind = type(leaf if is_state else value).__name__
            raise InputError(
                f"{argument} has a {kind} at {path!r}: pass parameters alone, as in nnx.state(model, nnx.Param), or "
                "their shapes."
            )
    return leaves, structure


def value_of(leaf: Leaf) -> Any:
    """The array in a leaf of `flatten`."""
    return jax.tree.leaves(leaf)[0]


def shape_of(leaf: Leaf | ParamInfo) -> tuple[int, ...]:
    """The shape of a leaf of `flatten`, or of a `ParamInfo`."""
    return tuple(np.shape(leaf if isinstance(leaf, ParamInfo) else value_of(leaf)))


def abstract(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """Shape and type of a leaf of `flatten`."""
    return jax.ShapeDtypeStruct(shape_of(leaf), getattr(value_of(leaf), "dtype", jnp.float32))
