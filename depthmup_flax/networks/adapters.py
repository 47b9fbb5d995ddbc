"""Networks of each library as pure functions of trees of arrays: the one place that calls a user's module."""

from __future__ import annotations

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
from depthmup_flax.rule.info_trees import is_equinox, is_nnx, is_torch, parts_of, path_name, template
from depthmup_flax.util.types import ArrayTree

Activations: TypeAlias = dict[str, jax.Array]
# Parameters of a call that say whether the network trains, and their values if it does.
_TRAINING = {"train": True, "training": True, "is_training": True, "deterministic": False, "inference": False}


def training_flags(call: Any, train: bool | None) -> dict[str, Any]:
    """The arguments that tell a function whether the network trains; none for ``None``."""
    named = parameters(call) if callable(call) and train is not None else {}
    return {name: value == train for name, value in _TRAINING.items() if name in named}


# Attributes of NNX and Equinox modules, which hold their mode.
NNX_MODES = ("deterministic", "use_running_average")
_MODES = (*NNX_MODES, "inference", "rate", "dropout_rate")


def modes(model: Any) -> dict[str, float]:
    """Name -> what says whether a part of an NNX or Equinox module drops and averages; the largest of equal layers."""
    held: list[tuple[str, Any]] = []
    if is_nnx(model, "Module"):
        from flax import nnx

        held = [("/".join(map(str, path)), value) for path, value in nnx.iter_graph(model)]
    elif is_equinox(model):
        held = [(path_name(path), value) for path, value in jax.tree_util.tree_leaves_with_path(model)]
    result: dict[str, float] = {}
    for path, value in held:
        name = template(path)
        if parts_of(path)[-1] in _MODES and isinstance(value, bool | int | float):
            result[name] = max(value, result.get(name, value))
    return result


def arguments_of(batch: Any) -> tuple[Any, ...]:
    """The arguments of a call on a batch: a tuple is several, one with names, such as a graph of jraph, is one."""
    return batch if type(batch) is tuple else (batch,)


def abstract(array: Any) -> jax.ShapeDtypeStruct:
    """The shape and type of an array, a shape, a number or a torch tensor."""
    dtype = getattr(array, "dtype", None) or np.asarray(array).dtype
    if type(dtype).__module__ == "torch":
        dtype = jax.dtypes.canonicalize_dtype(str(dtype).removeprefix("torch."))
    return jax.ShapeDtypeStruct(np.shape(array), dtype)


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


def _as_it_is(tree: Any) -> Any:
    return tree


def _both(params: Any, state: Any) -> tuple[Any, Any]:
    return params, state


@dataclasses.dataclass(frozen=True, eq=False)
class Adapter:
    """A network of any library, as functions; parameters and state are in the library's own containers.

    The state is what a step may change besides the parameters, such as running averages. A tuple of inputs is several
    arguments.

    Attributes:
      library: ``linen``, ``nnx``, ``equinox``, ``haiku``, ``torch``, ``pair`` or ``function``.
      model: what the user gave.
      init: ``(key, inputs, call)`` -> new parameters and state.
      apply: ``(params, state, inputs, call)`` -> the outputs and the new state.
      record: the same -> the outputs, and the floating-point outputs of every submodule by path; ``None``: the library
        does not tell them.
      held: shapes of parameters and state, of a module that holds its values.
      plain: ``(params, state)`` in nested dictionaries of arrays.
      contained, contained_state: plain ones in the library's containers; a tree of the parameters' paths may be of
        anything.
      filled: ``(params, state)`` -> the module with these values, of libraries whose modules hold them.
    """

    library: str
    model: Any
    init: Callable[..., tuple[Any, Any]]
    apply: Callable[..., tuple[Any, Any]]
    record: Callable[..., tuple[Any, Activations]] | None = None
    held: tuple[Any, Any] | None = None
    plain: Callable[[Any, Any], tuple[ArrayTree, ArrayTree]] = _both
    contained: Callable[[ArrayTree], Any] = _as_it_is
    contained_state: Callable[[ArrayTree], Any] = _as_it_is
    filled: Callable[[Any, Any], Any] | None = None

    def shapes(self, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        """Shapes of parameters and state; nothing is computed."""
        if self.held is not None:
            return self.held
        return jax.eval_shape(lambda inputs: self.init(jax.random.key(0), inputs, call), inputs)

    def captured(self, params: Any, state: Any, inputs: ArrayTree, call: Call) -> tuple[Any, Activations]:
        """The outputs, and the floating-point outputs of every submodule by path, where the library can tell them."""
        if self.record is not None:
            return self.record(params, state, inputs, call)
        return self.apply(params, state, inputs, call)[0], {}


def linen(model: nn.Module) -> Adapter:
    """A Linen module; its state is all collections but the parameters and what is sown. Boxes may be around values."""

    def init(key: jax.Array, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        # Flax takes the stream "params" for streams that are not given.
        options = call.options(type(model).__call__)
        variables = dict(model.init({"params": key}, *arguments_of(inputs), **options))
        params = variables.pop("params", {})
        return params, {name: nn.unbox(tree) for name, tree in variables.items() if not _is_sown(tree)}

    def applied(params: Any, state: Any, inputs: ArrayTree, call: Call, **options: Any) -> Any:
        rngs = None if call.key is None else {"dropout": call.key, "params": jax.random.fold_in(call.key, 1)}
        options |= call.options(type(model).__call__)
        return model.apply({"params": nn.unbox(params), **state}, *arguments_of(inputs), rngs=rngs, **options)

    def apply(params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        outputs, updated = applied(params, state, inputs, call, mutable=list(state))
        return outputs, {**state, **updated}

    def record(params: Any, state: Any, inputs: ArrayTree, call: Call) -> tuple[Any, Activations]:
        # A call may write whatever it sows.
        options = {"mutable": nn.DenyList("params"), "capture_intermediates": True}
        outputs, updated = applied(params, state, inputs, call, **options)
        return outputs, _named(nn.unbox(updated.get("intermediates", {})))

    plain = lambda params, state: (nn.unbox(params), state)
    return Adapter("linen", model, init, apply, record, plain=plain)


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


def _holder(
    library: str,
    model: Any,
    make: Callable[[jax.Array], Any] | None,
    parts: Callable[[Any], tuple[Any, Any]],
    **functions: Any,
) -> Adapter:
    """A module that holds its values: given itself, or as ``make``, which returns it for a key.

    ``parts``: module -> parameters and state.
    """
    params, state = parts(model)
    of_params, of_state = PlainTree(params), PlainTree(state)
    return Adapter(
        library,
        model,
        lambda key, inputs, call=_AS_IT_IS: parts(model if make is None else make(key)),
        held=(jax.tree.map(abstract, params), jax.tree.map(abstract, state)),
        plain=lambda params, state: (of_params.plain(params), of_state.plain(state)),
        contained=of_params.restored,
        contained_state=of_state.restored,
        **functions,
    )


def nnx_module(model: Any, make: Callable[[jax.Array], Any] | None = None) -> Adapter:
    """An NNX module: ``nnx.Param`` are the parameters; random streams are made from the key; others are the state."""
    from flax import nnx

    def split(module: Any) -> Any:
        return nnx.split(module, nnx.Param, nnx.RngState, ...)

    def parts(module: Any) -> tuple[Any, Any]:
        _, params, _, state = split(module)
        return params, state

    def filled(params: Any, state: Any, key: jax.Array | None = None) -> Any:
        definition, _, random, _ = split(model)
        streams = _streams(random, jax.random.key(0) if key is None else key)
        # Variables of another trace cannot be changed: the module gets new ones.
        params, state = jax.tree.map(lambda x: x, (params, state))
        return nnx.merge(definition, params, streams, state)

    def called(params: Any, state: Any, call: Call) -> Any:
        module = filled(params, state, call.key)
        if call.train is not None:
            (module.train if call.train else module.eval)()
        return module

    def apply(params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        module = called(params, state, call)
        outputs = module(*arguments_of(inputs), **call.options(type(module).__call__))
        return outputs, parts(module)[1]

    def record(params: Any, state: Any, inputs: ArrayTree, call: Call) -> tuple[Any, Activations]:
        module = called(params, state, call)
        recorded = nnx.capture(module, nnx.Intermediate, method_outputs=nnx.Intermediate)
        outputs, intermediates = recorded(*arguments_of(inputs), **call.options(type(module).__call__))
        return outputs, _named(nnx.to_pure_dict(intermediates))

    return _holder("nnx", model, make, parts, apply=apply, record=record, filled=filled)


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


def equinox_module(model: Any, make: Callable[[jax.Array], Any] | None = None) -> Adapter:
    """An Equinox module: inexact arrays are the parameters, others the state; it is mapped over the batch."""
    import equinox as eqx

    def split(module: Any) -> tuple[Any, Any, Any]:
        is_array = lambda leaf: isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))
        arrays, static = eqx.partition(module, is_array)
        params, state = eqx.partition(arrays, lambda leaf: is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact))
        return params, state, static

    def filled(params: Any, state: Any) -> Any:
        return eqx.combine(params, state, split(model)[2])

    def apply(params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        module = filled(params, state)
        if call.train is not None:
            module = eqx.nn.inference_mode(module, value=not call.train)
        function, arguments = type(module).__call__, arguments_of(inputs)
        options = call.options(function)
        if call.key is None or not takes(function, "key") or "key" in options:
            return jax.vmap(lambda *example: module(*example, **options))(*arguments), state
        keys = jax.random.split(call.key, jax.tree.leaves(arguments)[0].shape[0])
        return jax.vmap(lambda key, *example: module(*example, key=key, **options))(keys, *arguments), state

    return _holder("equinox", model, make, lambda module: split(module)[:2], apply=apply, filled=filled)


def haiku(model: Any) -> Adapter:
    """``hk.Transformed`` or ``hk.TransformedWithState``; a module's name with slashes is several levels."""
    function = getattr(model.apply, "_original_fn", None)  # that was transformed
    has_state = type(model).__name__ == "TransformedWithState"

    def init(key: jax.Array, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        # Running averages exist after a call in training.
        options = dataclasses.replace(call, train=True).options(function)
        result = model.init(key, *arguments_of(inputs), **options)
        return result if has_state else (result, {})

    def apply(params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        own = (params, state) if has_state else (params,)
        result = model.apply(*own, call.key, *arguments_of(inputs), **call.options(function))
        return result if has_state else (result, {})

    def plain(params: Any, state: Any) -> tuple[ArrayTree, ArrayTree]:
        flat = {f"{module}/{name}": leaf for module, leaves in params.items() for name, leaf in leaves.items()}
        return traverse_util.unflatten_dict(flat, sep="/"), {module: dict(leaves) for module, leaves in state.items()}

    def contained(params: ArrayTree) -> Any:
        modules: dict[str, dict[str, Any]] = {}
        for path, leaf in traverse_util.flatten_dict(params, sep="/").items():
            module, _, name = path.rpartition("/")
            modules.setdefault(module, {})[name] = leaf
        return modules

    return Adapter("haiku", model, init, apply, plain=plain, contained=contained)


def pair(model: tuple[Any, Any]) -> Adapter:
    """(init, apply) with ``init(key)`` or ``init(key, inputs)``, ``apply(params, inputs)``; both may take ``train``."""
    own, function = model

    def init(key: jax.Array, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        takes_inputs = len([p for p in parameters(own).values() if p.name not in _TRAINING]) > 1
        return own(key, *(arguments_of(inputs) if takes_inputs else ()), **call.options(own)), {}

    def apply(params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        key = {"key": call.key} if takes(function, "key") else {}
        return function(params, *arguments_of(inputs), **key | call.options(function)), {}

    return Adapter("pair", model, init, apply)


def function_of_parameters(model: tuple[Any, Any]) -> Adapter:
    """A function of (parameters, inputs) with its parameters, which may be shapes."""
    function, params = model

    def apply(params: Any, state: Any, inputs: ArrayTree, call: Call = _AS_IT_IS) -> tuple[Any, Any]:
        return function(params, *arguments_of(inputs), **call.kwargs), ()

    init = lambda key, inputs, call=_AS_IT_IS: (params, ())
    return Adapter("function", model, init, apply, held=(params, ()))


def adapter_of(model: Any) -> Adapter | None:
    """The adapter of a module, a Haiku ``Transformed``, a pair (init, apply) or a pair (function, parameters)."""
    kind = type(model)
    if isinstance(model, Adapter):
        return model
    if isinstance(model, nn.Module):
        return linen(model)
    if is_nnx(model, "Module"):
        return nnx_module(model)
    if is_equinox(model):
        return equinox_module(model)
    if is_torch(model):
        from depthmup_flax.networks.torch_modules import torch_module

        return torch_module(model)
    if kind.__module__.split(".")[0] == "haiku" and kind.__name__ in ("Transformed", "TransformedWithState"):
        return haiku(model)
    if isinstance(model, tuple) and len(model) == 2 and callable(model[0]):
        is_pair = callable(model[1]) and not is_equinox(model[0])
        return pair(model) if is_pair else function_of_parameters(model)
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
