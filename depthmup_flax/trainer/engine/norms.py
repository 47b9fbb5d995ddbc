"""Norms of gradients, parameters and updates: of all parameters, and of those that the rule treats alike."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.util.types import ArrayTree, InfoTree


def norms(info: InfoTree, trees: Mapping[str, ArrayTree]) -> dict[str, jax.Array]:
    """L2 norms, float32, of trees with the structure of ``info``: ``grad_norm/all``, ``grad_norm/hidden+branch``, ...

    ``trees``: the first word of a name -> tree. The second word is ``all`` or a role, as the parameter table writes it.
    """
    groups: dict[str, list[str]] = {}
    leaves = flatten_info(info)
    for path, leaf in leaves.items():
        groups.setdefault(leaf.role + ("+branch" if leaf.in_branch else ""), []).append(path)
    found: dict[str, jax.Array] = {}
    for name, tree in trees.items():
        sizes = [jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(tree)]
        squares = dict(zip(leaves, sizes, strict=True))
        sums = {"all": sum(squares.values())} | {k: sum(squares[path] for path in v) for k, v in groups.items()}
        found |= {f"{name}_norm/{group}": jnp.sqrt(total) for group, total in sums.items()}
    return found
