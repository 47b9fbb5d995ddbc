"""Networks of each library as pure functions of trees of arrays: the one place that calls a user's module."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from depthmup_flax.networks.user_code import parameters, takes
from depthmup_flax.rule.info_trees import is_equinox, is_nnx, path_name
from depthmup_flax.util.types import ArrayTree

Activations: TypeAlias = dict[str, jax.Array]
# Parameters of a call that say whether the network trains, and their values if it does.
_TRAINING = {"train": True, "training": True, "is_training": True, "deterministic": False, "inference": False}


def training_flags(call: Any, train: bool | None) -> dict[str, Any]:
    """The arguments that tell a function whether the network trains; none for ``None``."""
    named = parameters(call) if callable(call) and train is not None else {}
    return {name: value == train for name, value in _TRAINING.items() if name in named}


def arguments_of(batch: Any) -> tuple[Any, ...]:
    """The arguments of a call on a batch: a tuple is several, one with names, such as a graph of jraph, is one."""
    return batch if type(batch) is tuple else (batch,)


def abstract(array: Any) -> jax.ShapeDtypeStruct:
    """The shape and type of an array, a shape or a number."""
    return jax.ShapeDtypeStruct(np.shape(array), getattr(array, "dtype", None) or np.asarray(array).dtype)


def once_for_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(network, inputs, *others)``, which reads shapes alone and is traced once: that may take a second."""

    @functools.lru_cache(maxsize=32)
    def of(network: Any, tree: Any, shapes: tuple[Any, ...], *others: Any) -> Any:
        return function(network, jax.tree.unflatten(tree, shapes), *others)

    def remembered(network: Any, inputs: ArrayTree, *others: Any) -> Any:
        shapes, tree = jax.tree.flatten(jax.tree.map(abstract, inputs))
        return of(network, tree, tuple(shapes), *others)

    return functools.wraps(function)(remembered)


@dataclasses.dataclass(frozen=True)
class Call:
    """How a network is called."""

    key: jax.Array | None = None  # for dropout and the like; `None` where nothing is random
    train: bool | None = None  # by the arguments or the methods that the library has for it; `None`: as the module is
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # further arguments

    def options(self, function: Any) -> dict[str, Any]:
        """The keyword arguments of a function that is called."""
        return {**training_flags(function, self.train), **self.kwargs}


_AS_IT_IS = Call()


class Adapter(abc.ABC):
    """A network of any library; parameters and state are in the library's own containers.

    The state is what a step may change besides the parameters, such as running averages. A tuple of inputs is several
    arguments.
    """

    model: Any  # what the user gave

    @abc.abstractmethod
    def init(self, key: jax.Array, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        """New parameters and state."""

    @abc.abstractmethod
    def apply(self, params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        """The outputs and the new state."""

    def captured(self, params: Any, state: Any, inputs: ArrayTree, call: Call) -> tuple[Any, Activations]:
        """The outputs, and the floating-point outputs of every submodule by path, where the library can tell them."""
        return self.apply(params, state, inputs, call)[0], {}

    def shapes(self, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        """Shapes of parameters and state; nothing is computed."""
        return jax.eval_shape(lambda inputs: self.init(jax.random.key(0), inputs, call), inputs)

    def plain(self, params: Any, state: Any) -> tuple[ArrayTree, ArrayTree]:
        """Parameters and state in nested dictionaries of arrays."""
        return params, state

    def contained(self, params: ArrayTree) -> Any:
        """A tree with the paths of plain parameters, in the library's containers."""
        return params

    def contained_state(self, state: ArrayTree) -> Any:
        """A plain state in the library's containers."""
        return state

    def filled(self, params: Any, state: Any) -> Any:
        """The module with these values, of libraries whose modules hold them; else what the user gave."""
        return self.model


@dataclasses.dataclass(frozen=True)
class Linen(Adapter):
    """All collections but the parameters, and what is sown, are the state; parameters may be in boxes."""

    model: nn.Module

    def init(self, key: jax.Array, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        # Flax takes the stream "params" for streams that are not given.
        options = call.options(type(self.model).__call__)
        variables = dict(self.model.init({"params": key}, *arguments_of(inputs), **options))
        params = variables.pop("params", {})
        return params, {name: nn.unbox(tree) for name, tree in variables.items() if not _is_sown(tree)}

    def apply(self, params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        outputs, updated = self._applied(params, state, inputs, call, mutable=list(state))
        return outputs, {**state, **updated}

    def captured(self, params: Any, state: Any, inputs: ArrayTree, call: Call) -> tuple[Any, Activations]:
        # A call may write whatever it sows.
        options = {"mutable": nn.DenyList("params"), "capture_intermediates": True}
        outputs, updated = self._applied(params, state, inputs, call, **options)
        return outputs, _named(nn.unbox(updated.get("intermediates", {})))

    def _applied(self, params: Any, state: Any, inputs: ArrayTree, call: Call, **options: Any) -> Any:
        rngs = None if call.key is None else {"dropout": call.key, "params": jax.random.fold_in(call.key, 1)}
        options |= call.options(type(self.model).__call__)
        return self.model.apply({"params": nn.unbox(params), **state}, *arguments_of(inputs), rngs=rngs, **options)

    def plain(self, params: Any, state: Any) -> tuple[ArrayTree, ArrayTree]:
        return nn.unbox(params), state


def _is_sown(collection: ArrayTree) -> bool:
    """Whether ``sow`` filled a collection, with tuples that would grow at every call."""
    leaves = jax.tree.leaves(collection, is_leaf=lambda x: isinstance(x, tuple))
    return any(isinstance(leaf, tuple) for leaf in leaves)


def _named(tree: ArrayTree) -> Activations:
    """Floating-point arrays of a nested record by path, without ``__call__``, positions and the output."""
    activations: Activations = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
        name = "/".join(part for part in names if part != "__call__")
        if name and hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating):
            activations.setdefault(name, leaf)
    return activations


class _Holder(Adapter):
    """A module that holds its values: given itself, or as ``make``, which returns it for a key."""

    def __init__(self, model: Any, make: Any = None) -> None:
        self.model, self._make = model, make or (lambda key: model)

    @abc.abstractmethod
    def _parts(self, module: Any) -> tuple[Any, Any]:
        """Parameters and state of a module."""

    @functools.cached_property
    def _trees(self) -> tuple[PlainTree, PlainTree]:
        params, state = self._parts(self.model)
        return PlainTree(params), PlainTree(state)

    def init(self, key: jax.Array, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        return self._parts(self._make(key))

    def shapes(self, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        params, state = self._parts(self.model)
        return jax.tree.map(abstract, params), jax.tree.map(abstract, state)

    def plain(self, params: Any, state: Any) -> tuple[ArrayTree, ArrayTree]:
        return self._trees[0].plain(params), self._trees[1].plain(state)

    def contained(self, params: ArrayTree) -> Any:
        return self._trees[0].restored(params)

    def contained_state(self, state: ArrayTree) -> Any:
        return self._trees[1].restored(state)


class Nnx(_Holder):
    """``nnx.Param`` are the parameters; random streams are made from the key; all other variables are the state."""

    def _split(self, module: Any) -> Any:
        from flax import nnx

        return nnx.split(module, nnx.Param, nnx.RngState, ...)

    def _parts(self, module: Any) -> tuple[Any, Any]:
        _, params, _, state = self._split(module)
        return params, state

    def filled(self, params: Any, state: Any, key: jax.Array | None = None) -> Any:
        from flax import nnx

        definition, _, random, _ = self._split(self.model)
        streams = _streams(random, jax.random.key(0) if key is None else key)
        # Variables of another trace cannot be changed: the module gets new ones.
        params, state = jax.tree.map(lambda x: x, (params, state))
        return nnx.merge(definition, params, streams, state)

    def apply(self, params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        module = self._called(params, state, call)
        outputs = module(*arguments_of(inputs), **call.options(type(module).__call__))
        return outputs, self._parts(module)[1]

    def captured(self, params: Any, state: Any, inputs: ArrayTree, call: Call) -> tuple[Any, Activations]:
        from flax import nnx

        module = self._called(params, state, call)
        recorded = nnx.capture(module, nnx.Intermediate, method_outputs=nnx.Intermediate)
        outputs, intermediates = recorded(*arguments_of(inputs), **call.options(type(module).__call__))
        return outputs, _named(nnx.to_pure_dict(intermediates))

    def _called(self, params: Any, state: Any, call: Call) -> Any:
        module = self.filled(params, state, call.key)
        if call.train is not None:
            (module.train if call.train else module.eval)()
        return module


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


class Equinox(_Holder):
    """Inexact arrays are the parameters, others the state; the module is mapped over the batch."""

    def _split(self, module: Any) -> tuple[Any, Any, Any]:
        import equinox as eqx

        is_array = lambda leaf: isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))
        arrays, static = eqx.partition(module, is_array)
        params, state = eqx.partition(arrays, lambda leaf: is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact))
        return params, state, static

    def _parts(self, module: Any) -> tuple[Any, Any]:
        return self._split(module)[:2]

    def filled(self, params: Any, state: Any) -> Any:
        import equinox as eqx

        return eqx.combine(params, state, self._split(self.model)[2])

    def apply(self, params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        import equinox as eqx

        module = self.filled(params, state)
        if call.train is not None:
            module = eqx.nn.inference_mode(module, value=not call.train)
        function, arguments = type(module).__call__, arguments_of(inputs)
        options = call.options(function)
        if call.key is None or not takes(function, "key") or "key" in options:
            return jax.vmap(lambda *example: module(*example, **options))(*arguments), state
        keys = jax.random.split(call.key, jax.tree.leaves(arguments)[0].shape[0])
        return jax.vmap(lambda key, *example: module(*example, key=key, **options))(keys, *arguments), state


@dataclasses.dataclass(frozen=True)
class Haiku(Adapter):
    """``hk.Transformed`` or ``hk.TransformedWithState``; a module's name with slashes is several levels."""

    model: Any

    @property
    def _function(self) -> Any:
        """The function that was transformed."""
        return getattr(self.model.apply, "_original_fn", None)

    @property
    def _has_state(self) -> bool:
        return type(self.model).__name__ == "TransformedWithState"

    def init(self, key: jax.Array, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        # Running averages exist after a call in training.
        options = dataclasses.replace(call, train=True).options(self._function)
        result = self.model.init(key, *arguments_of(inputs), **options)
        return result if self._has_state else (result, {})

    def apply(self, params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        own = (params, state) if self._has_state else (params,)
        result = self.model.apply(*own, call.key, *arguments_of(inputs), **call.options(self._function))
        return result if self._has_state else (result, {})

    def plain(self, params: Any, state: Any) -> tuple[ArrayTree, ArrayTree]:
        flat = {f"{module}/{name}": leaf for module, leaves in params.items() for name, leaf in leaves.items()}
        return traverse_util.unflatten_dict(flat, sep="/"), {module: dict(leaves) for module, leaves in state.items()}

    def contained(self, params: ArrayTree) -> Any:
        modules: dict[str, dict[str, Any]] = {}
        for path, leaf in traverse_util.flatten_dict(params, sep="/").items():
            module, _, name = path.rpartition("/")
            modules.setdefault(module, {})[name] = leaf
        return modules


@dataclasses.dataclass(frozen=True)
class Pair(Adapter):
    """(init, apply) with ``init(key)`` or ``init(key, inputs)``, ``apply(params, inputs)``; both may take ``train``."""

    model: tuple[Any, Any]

    def init(self, key: jax.Array, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        own = self.model[0]
        takes_inputs = len([p for p in parameters(own).values() if p.name not in _TRAINING]) > 1
        return own(key, *(arguments_of(inputs) if takes_inputs else ()), **call.options(own)), {}

    def apply(self, params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        function = self.model[1]
        key = {"key": call.key} if takes(function, "key") else {}
        return function(params, *arguments_of(inputs), **key | call.options(function)), {}


@dataclasses.dataclass(frozen=True)
class Function(Adapter):
    """A function of (parameters, inputs) with its parameters, which may be shapes."""

    model: tuple[Any, Any]

    def init(self, key: jax.Array, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        return self.model[1], ()

    def shapes(self, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        return self.model[1], ()

    def apply(self, params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        return self.model[0](params, *arguments_of(inputs), **call.kwargs), ()


def adapter_of(model: Any) -> Adapter | None:
    """The adapter of a module, a Haiku ``Transformed``, a pair (init, apply) or a pair (function, parameters)."""
    kind = type(model)
    if isinstance(model, Adapter):
        return model
    if isinstance(model, nn.Module):
        return Linen(model)
    if is_nnx(model, "Module"):
        return Nnx(model)
    if is_equinox(model):
        return Equinox(model)
    if kind.__module__.split(".")[0] == "haiku" and kind.__name__ in ("Transformed", "TransformedWithState"):
        return Haiku(model)
    if isinstance(model, tuple) and len(model) == 2 and callable(model[0]):
        return Pair(model) if callable(model[1]) and not is_equinox(model[0]) else Function(model)
    return None


class PlainTree:
    """A tree, such as ``nnx.State`` or a part of an Equinox module, as nested dictionaries with the same paths."""

    def __init__(self, tree: Any):
        self._names, self._structure = list(_leaves(tree)), jax.tree.structure(tree)

    def plain(self, tree: Any) -> dict[str, Any]:
        """The leaves of a tree that has at least these, in nested dictionaries."""
        leaves = _leaves(tree)
        return traverse_util.unflatten_dict({name: leaves[name] for name in self._names}, sep="/")

    def restored(self, plain: Mapping[str, Any]) -> Any:
        """The tree with the leaves of nested dictionaries."""
        leaves = traverse_util.flatten_dict(plain, sep="/")
        return jax.tree.unflatten(self._structure, [leaves[name] for name in self._names])


def _leaves(tree: Any) -> dict[str, Any]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: is_nnx(x, "Variable"))
    return {path_name(path): jax.tree.leaves(leaf)[0] for path, leaf in flat}
