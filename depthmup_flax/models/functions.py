"""A model as two pure functions, whatever library it is written in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

from depthmup_flax.util.types import ArrayTree


@dataclasses.dataclass(frozen=True)
class ModelFunctions:
    """A model of any library.

    Attributes:
      init: ``(key, inputs) -> (params, collections)``: trees of arrays. A forward pass in training may update the
        collections, such as the averages of BatchNorm.
      apply: ``(params, collections, inputs, *, train, key) -> (outputs, collections)``; ``key`` is of dropout, ``None``
        without ``train``.
    """

    init: Callable[[jax.Array, Any], tuple[ArrayTree, ArrayTree]]
    apply: Callable[..., tuple[Any, ArrayTree]]


def our_functions(model: nn.Module) -> ModelFunctions:
    """A model of `depthmup_flax.models`: ``apply`` takes its flags, too."""

    def init(key: jax.Array, inputs: jax.Array) -> tuple[ArrayTree, ArrayTree]:
        return without_boxes(model.init(key, inputs))

    def apply(
        params: ArrayTree,
        collections: ArrayTree,
        inputs: jax.Array,
        *,
        train: bool,
        key: Any,
        **flags: Any,
    ) -> tuple[Any, ArrayTree]:
        variables = {"params": params, **collections}
        if not train:
            return model.apply(variables, inputs, train=False, **flags), collections
        outputs, updated = model.apply(
            variables, inputs, train=True, mutable=["batch_stats"], rngs={"dropout": key}, **flags
        )
        return outputs, {name: updated.get(name, value) for name, value in collections.items()}

    return ModelFunctions(init, apply)


def without_boxes(variables: Mapping[str, ArrayTree]) -> tuple[ArrayTree, ArrayTree]:
    """Parameters and other collections of a Linen model's variables."""
    collections = dict(nn.unbox(variables))
    return collections.pop("params"), collections
