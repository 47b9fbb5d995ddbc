"""The models that an audit takes, each as a pure function of parameters, traced with shapes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from depthmup_flax.auditing import parameter_trees as trees
from depthmup_flax.auditing.parameter_trees import Leaf
from depthmup_flax.devices.host import drawn
from depthmup_flax.networks.adapters import (
    NNX_MODES,
    Adapter,
    Call,
    abstract,
    adapter_of,
    function_of_parameters,
    once_for_shapes,
)
from depthmup_flax.networks.model_functions import ModelFunctions
from depthmup_flax.networks.user_code import shapes_of
from depthmup_flax.rule.info_trees import path_name, root_mean_square
from depthmup_flax.trace.graph import STATE, Graph
from depthmup_flax.trace.tracing import Known, trace
from depthmup_flax.util.errors import InputError, shown
from depthmup_flax.util.types import ArrayTree

Output: TypeAlias = "int | str | Sequence[int | str] | Callable[[Any], Any] | None"


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as a pure function of its parameters, with shapes in place of arrays."""

    leaves: Mapping[str, Leaf]  # path -> parameter, in its box
    structure: jax.tree_util.PyTreeDef  # around the leaves
    shapes: Mapping[str, tuple[int, ...]]  # path -> shape
    graph: Graph
    # Path of an NNX variable that the output depends on and that may be trained -> its type, which
    # is none of parameters.
    other_variables: Mapping[str, str]
    # -> its initial parameters; shapes, if the model was given by them.
    initial: Callable[[], ArrayTree]
    library: str  # `Adapter.library`; "" of a `ModelFunctions`

    def initial_sizes(self, paths: Mapping[str, str]) -> Callable[[], Mapping[str, float]]:
        """A function: path -> root mean square of the initial values at the other path.

        They are drawn at the first call. Empty if these are not known.
        """

        @functools.cache
        def sizes() -> Mapping[str, float]:
            leaves, _ = trees.flatten(self.initial(), "base")
            arrays = {path: trees.value_of(leaf) for path, leaf in leaves.items()}
            if any(map(_has_no_values, arrays.values())):
                return {}
            return {path: root_mean_square(arrays[drawn_at]) for path, drawn_at in paths.items()}

        return sizes


def _has_no_values(array: Any) -> bool:
    return isinstance(array, (jax.ShapeDtypeStruct, jax.core.Tracer))


def as_model(
    model: Any,
    x: ArrayTree,
    argument: str,
    output: Output,
    kwargs: Mapping[str, Any],
    known: Known,
) -> Model:
    """A module, a pair or a `ModelFunctions`, traced on a batch of the shapes of ``x``.

    ``argument`` names the model in errors; ``known``: see `depthmup_flax.audit`. `InputError` if
    the forward pass fails or does not return ``output``.
    """
    if isinstance(x, Mapping) and jax.tree_util.all_leaves([x]):
        x = dict(x)  # what a tokenizer of transformers returns
    if not any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(x)):
        right = "a batch that the model takes, an array or a jax.ShapeDtypeStruct"
        raise InputError(f"x is {shown(x)}: pass {right}.")
    for leaf in jax.tree.leaves(x):
        if 0 in getattr(leaf, "shape", ()):
            text = f"an array of the shape {list(leaf.shape)}"
            raise InputError(f"x has {text}: pass a batch of one example or more.")
    inputs = jax.tree.map(abstract, x)
    if isinstance(model, ModelFunctions) and not known:
        return _of_functions(model, inputs, argument, output)
    return _traced(model, inputs, argument, output, kwargs, known)


@once_for_shapes
def _of_functions(model: ModelFunctions, inputs: ArrayTree, argument: str, output: Output) -> Model:
    return _traced(model, inputs, argument, output, {}, {})


def _traced(
    model: Any,
    inputs: ArrayTree,
    argument: str,
    output: Output,
    kwargs: Mapping[str, Any],
    known: Known,
) -> Model:
    adapter = _adapter(model, argument)
    library = adapter.library if adapter else ""
    try:
        params, state = _shapes(model, adapter, inputs, kwargs)
        leaves, structure = trees.flatten(params, argument)
        inner = jax.tree.structure(params)

        def forward(flat: Mapping[str, Any], state: ArrayTree, batch: ArrayTree) -> Any:
            arrays = jax.tree.unflatten(inner, [flat[path] for path in leaves])
            return selected(_called(model, adapter, kwargs, arrays, state, batch), output)

        flat = {path: trees.abstract(leaf) for path, leaf in leaves.items()}
        graph = trace(forward, flat, state, inputs, known)
    except InputError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        message = lines[0] if lines else ""
        raise InputError(
            f"the call {argument}(x) with x = {shapes_of(inputs)} failed, {type(error).__name__}: "
            f"{message.rstrip('.')}. {_hint(error, inputs, library)}"
        ) from error
    shapes = {path: trees.shape_of(leaf) for path, leaf in leaves.items()}
    initial = _initial(model, adapter, inputs, kwargs, params)
    others = _other_variables(state, graph) if library == "nnx" else {}
    return Model(leaves, structure, shapes, graph, others, initial, library)


def _hint(error: Exception, inputs: ArrayTree, library: str) -> str:
    """What to write instead of a call that failed."""
    if library == "nnx" and any(f"`{name}` argument" in str(error) for name in NNX_MODES):
        return "Audit an NNX module as you train it: call model.train() and base.train() first."
    if isinstance(error, TypeError) and "argument" in str(error):
        return "The parts of a tuple are the model's arguments; audit passes keyword arguments on."
    hint = "x must be what the model is called with in training"
    if any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(inputs)):
        tokens = "torch.zeros(1, 64, dtype=torch.long)" if library == "torch" else "jnp.zeros((1, 64), int)"
        hint += f": tokens are integers, such as {tokens}"
    return f"{hint}."


def _adapter(model: Any, argument: str) -> Adapter | None:
    """How to call a model; ``None`` of a `ModelFunctions`, which is called as it is."""
    if type(model) is tuple and callable(model[0]):
        return function_of_parameters(model)
    adapter = adapter_of(model)
    if adapter is None and not isinstance(model, ModelFunctions):
        right = "a Linen, NNX or Equinox module (an instance), one of torch, or a pair (function, parameters)"
        text = f"{argument} is {shown(model)}: pass {right} with function(parameters, x)."
        raise InputError(text)
    return adapter


def _shapes(
    model: Any, adapter: Adapter | None, inputs: ArrayTree, kwargs: Mapping[str, Any]
) -> tuple[ArrayTree, ArrayTree]:
    """The shapes of parameters, in their boxes, and of the state."""
    if adapter is None:
        return model.boxed_shapes(inputs)
    return adapter.shapes(inputs, Call(kwargs=kwargs))


def _called(
    model: Any,
    adapter: Adapter | None,
    kwargs: Mapping[str, Any],
    params: ArrayTree,
    state: ArrayTree,
    batch: ArrayTree,
) -> Any:
    """What the forward pass returns in training."""
    key = jax.random.key(0)  # traced: the audit makes no array
    if adapter is None:
        result, _ = model.apply(params, state, batch, train=True, key=key)
    else:
        result, _ = adapter.apply(params, state, batch, Call(key, kwargs=kwargs))
    return result


def _other_variables(state: ArrayTree, graph: Graph) -> dict[str, str]:
    """`Model.other_variables` of an NNX module."""
    from flax import nnx

    of_library = (nnx.BatchStat, nnx.Cache, nnx.Intermediate)
    needed = graph.needed()
    is_read = [needed[i] for i, node in enumerate(graph.nodes) if node.op == STATE]
    is_variable = lambda x: isinstance(x, nnx.Variable)
    variables, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_variable)
    result: dict[str, str] = {}
    for (path, variable), read in zip(variables, is_read, strict=True):
        dtype = jax.tree.leaves(variable)[0].dtype
        is_own = isinstance(variable, nnx.Variable) and not isinstance(variable, of_library)
        if read and is_own and jnp.issubdtype(dtype, jnp.floating):
            result[path_name(path)] = type(variable).__name__
    return result


def _initial(
    model: Any,
    adapter: Adapter | None,
    inputs: ArrayTree,
    kwargs: Mapping[str, Any],
    params: ArrayTree,
) -> Callable[[], ArrayTree]:
    """A function that draws initial parameters; those of a pair are given."""

    def initial() -> ArrayTree:
        if adapter is not None and adapter.library == "function":
            return params
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), inputs)

        def draw(key: jax.Array) -> ArrayTree:
            if adapter is None:
                return model.init(key, zeros)[0]
            return adapter.init(key, zeros, Call(kwargs=kwargs))[0]

        return drawn(draw, jax.random.key(0))

    return initial


def selected(result: Any, output: Output) -> Any:
    """The outputs among the results of a call."""
    if output is None:
        return result
    if callable(output):
        return output(result)
    if isinstance(output, (tuple, list)):  # each makes a readout of its own
        arrays: list[jax.Array] = []
        for name in output:
            arrays += jax.tree.leaves(selected(result, name))
        return jnp.concatenate([array.ravel() for array in arrays])
    if isinstance(output, str) and not isinstance(result, Mapping) and hasattr(result, output):
        return getattr(result, output)
    try:
        return result[output]
    except (KeyError, IndexError, TypeError) as error:
        names = shapes_of(result)
        if isinstance(result, Mapping):
            names = f"the keys {sorted(map(str, result))}"
        text = f"output is {output!r}, but the model returns {names}: name one of its results."
        raise InputError(text) from error
