"""Networks of each library as two pure functions of plain trees of arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util

from depthmup_flax.auditing.given_model import arguments_of, equinox_parts
from depthmup_flax.networks.fields import parameters, takes
from depthmup_flax.rule.info_trees import is_nnx, path_name
from depthmup_flax.util.types import ArrayTree

Init: TypeAlias = Callable[[jax.Array, ArrayTree], tuple[ArrayTree, ArrayTree]]
# (params, state, inputs, train, key) -> (outputs, new state)
Apply: TypeAlias = Callable[[ArrayTree, ArrayTree, ArrayTree, bool, "jax.Array | None"], tuple[Any, ArrayTree]]


class Functions(NamedTuple):
    """A network.

    ``contained`` puts a tree with the paths of ``init``'s parameters in the library's containers; ``filled`` is
    (params, state) -> the module with these values, for modules that hold them.
    """

    init: Init
    apply: Apply
    contained: Callable[[Any], Any] = lambda params: params
    filled: Callable[[ArrayTree, ArrayTree], Any] | None = None


# Parameters of a call that say whether the network trains, and their values if it does.
_TRAINING = {"train": True, "training": True, "is_training": True, "deterministic": False, "inference": False}


def training_flags(call: Any, train: bool) -> dict[str, Any]:
    """The arguments that tell a function whether the network trains."""
    named = parameters(call) if callable(call) else {}
    return {name: value == train for name, value in _TRAINING.items() if name in named}


def linen_functions(model: nn.Module) -> Functions:
    """All collections but the parameters, and what is sown, are the state."""
    call = type(model).__call__

    def init(key: jax.Array, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        # Flax takes the stream "params" for streams that are not given.
        flags = training_flags(call, False)
        variables = dict(model.init({"params": key}, *arguments_of(inputs), **flags))
        params = variables.pop("params", {})
        return nn.unbox(params), {name: nn.unbox(tree) for name, tree in variables.items() if not _is_sown(tree)}

    def apply(
        params: ArrayTree, state: ArrayTree, inputs: ArrayTree, train: bool, key: jax.Array | None
    ) -> tuple[Any, ArrayTree]:
        rngs = None if key is None else {"dropout": key, "params": jax.random.fold_in(key, 1)}
        variables = {"params": params, **state}
        flags = training_flags(call, train)
        outputs, updated = model.apply(variables, *arguments_of(inputs), rngs=rngs, mutable=list(state), **flags)
        return outputs, {**state, **updated}

    return Functions(init, apply)


def _is_sown(collection: ArrayTree) -> bool:
    """Whether ``sow`` filled a collection, with tuples that would grow at every call."""
    leaves = jax.tree.leaves(collection, is_leaf=lambda x: isinstance(x, tuple))
    return any(isinstance(leaf, tuple) for leaf in leaves)


def nnx_functions(make: Callable[[jax.Array], Any]) -> Functions:
    """``nnx.Param`` are the parameters; random streams are made from the key; all other variables are the state."""
    from flax import nnx

    def split(module: Any) -> tuple[Any, Any, Any, Any]:
        parts: Any = nnx.split(module, nnx.Param, nnx.RngState, ...)
        return parts

    definition, params_of, random, state_of = split(nnx.eval_shape(lambda: make(jax.random.key(0))))
    plain_params, plain_state = PlainTree(params_of), PlainTree(state_of)

    def init(key: jax.Array, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        _, params, _, state = split(make(key))
        return plain_params.plain(params), plain_state.plain(state)

    def merged(params: ArrayTree, state: ArrayTree, key: jax.Array | None = None) -> Any:
        streams = _streams(random, jax.random.key(0) if key is None else key)
        return nnx.merge(definition, plain_params.restored(params), streams, plain_state.restored(state))

    def apply(
        params: ArrayTree, state: ArrayTree, inputs: ArrayTree, train: bool, key: jax.Array | None
    ) -> tuple[Any, ArrayTree]:
        module = merged(params, state, key)
        (module.train if train else module.eval)()
        outputs = module(*arguments_of(inputs), **training_flags(type(module).__call__, train))
        return outputs, plain_state.plain(split(module)[3])

    return Functions(init, apply, plain_params.restored, merged)


def _streams(random: Any, key: jax.Array) -> Any:
    """The random streams of an NNX module, each with its own key, counts at zero."""
    flat, structure = jax.tree.flatten(random)
    values = []
    for n, leaf in enumerate(flat):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            one = jax.random.fold_in(key, n)
            values.append(jax.random.split(one, leaf.shape) if leaf.shape else one)
        else:
            values.append(jnp.zeros(leaf.shape, leaf.dtype))
    return jax.tree.unflatten(structure, values)


def equinox_functions(make: Callable[[jax.Array], Any]) -> Functions:
    """Inexact arrays are the parameters, others the state; the module is mapped over the batch."""
    import equinox as eqx

    params_of, state_of, static = equinox_parts(eqx.filter_eval_shape(lambda: make(jax.random.key(0))))
    plain_params, plain_state = PlainTree(params_of), PlainTree(state_of)

    def init(key: jax.Array, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        params, state, _ = equinox_parts(make(key))
        return plain_params.plain(params), plain_state.plain(state)

    def combined(params: ArrayTree, state: ArrayTree) -> Any:
        return eqx.combine(plain_params.restored(params), plain_state.restored(state), static)

    def apply(
        params: ArrayTree, state: ArrayTree, inputs: ArrayTree, train: bool, key: jax.Array | None
    ) -> tuple[Any, ArrayTree]:
        module = eqx.nn.inference_mode(combined(params, state), value=not train)
        call, arguments = type(module).__call__, arguments_of(inputs)
        flags = training_flags(call, train)
        if key is None or not takes(call, "key"):
            return jax.vmap(lambda *example: module(*example, **flags))(*arguments), state
        keys = jax.random.split(key, jax.tree.leaves(arguments)[0].shape[0])
        return jax.vmap(lambda key, *example: module(*example, key=key, **flags))(keys, *arguments), state

    return Functions(init, apply, plain_params.restored, combined)


def haiku_functions(transformed: Any) -> Functions:
    """``hk.Transformed`` or ``hk.TransformedWithState``; a module's name with slashes is several levels."""
    has_state = type(transformed).__name__ == "TransformedWithState"
    call = getattr(transformed.apply, "_original_fn", None)  # the function that was transformed

    def init(key: jax.Array, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        result = transformed.init(key, *arguments_of(inputs), **training_flags(call, True))
        params, state = result if has_state else (result, {})
        flat = {f"{module}/{name}": leaf for module, leaves in params.items() for name, leaf in leaves.items()}
        return traverse_util.unflatten_dict(flat, sep="/"), {module: dict(leaves) for module, leaves in state.items()}

    def apply(
        params: ArrayTree, state: ArrayTree, inputs: ArrayTree, train: bool, key: jax.Array | None
    ) -> tuple[Any, ArrayTree]:
        own = (_by_module(params), state) if has_state else (_by_module(params),)
        result = transformed.apply(*own, key, *arguments_of(inputs), **training_flags(call, train))
        outputs, new = result if has_state else (result, {})
        return outputs, {module: dict(leaves) for module, leaves in new.items()}

    return Functions(init, apply, _by_module)


def _by_module(params: ArrayTree) -> dict[str, dict[str, Any]]:
    """Nested dictionaries as Haiku has them: the name of a module, with slashes, and the name of a parameter."""
    modules: dict[str, dict[str, Any]] = {}
    for path, leaf in traverse_util.flatten_dict(params, sep="/").items():
        module, _, name = path.rpartition("/")
        modules.setdefault(module, {})[name] = leaf
    return modules


def pair_functions(pair: tuple[Any, Any]) -> Functions:
    """(init, apply) with ``init(key)`` or ``init(key, inputs)``, ``apply(params, inputs)``; both may take ``train``."""
    own_init, own_apply = pair
    takes_inputs = len([p for p in parameters(own_init).values() if p.name not in _TRAINING]) > 1

    def init(key: jax.Array, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        return own_init(key, *(arguments_of(inputs) if takes_inputs else ()), **training_flags(own_init, False)), {}

    def apply(
        params: ArrayTree, state: ArrayTree, inputs: ArrayTree, train: bool, key: jax.Array | None
    ) -> tuple[Any, ArrayTree]:
        options = training_flags(own_apply, train)
        if takes(own_apply, "key"):
            options["key"] = key
        return own_apply(params, *arguments_of(inputs), **options), {}

    return Functions(init, apply)


@dataclasses.dataclass(frozen=True, init=False)
class PlainTree:
    """A tree, such as ``nnx.State`` or a part of an Equinox module, as nested dictionaries with the same paths."""

    names: tuple[str, ...]
    structure: jax.tree_util.PyTreeDef

    def __init__(self, tree: Any):
        flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: is_nnx(x, "Variable"))
        object.__setattr__(self, "names", tuple(path_name(path) for path, _ in flat))
        object.__setattr__(self, "structure", jax.tree.structure(tree))

    def plain(self, tree: Any) -> dict[str, Any]:
        """The leaves of a tree that has at least these, in nested dictionaries."""
        flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: is_nnx(x, "Variable"))
        leaves = {path_name(path): jax.tree.leaves(leaf)[0] for path, leaf in flat}
        return traverse_util.unflatten_dict({name: leaves[name] for name in self.names}, sep="/")

    def restored(self, plain: Mapping[str, Any]) -> Any:
        """The tree with the leaves of nested dictionaries."""
        leaves = traverse_util.flatten_dict(plain, sep="/")
        return jax.tree.unflatten(self.structure, [leaves[name] for name in self.names])
