"""The models that an audit takes, each as one pure function of its parameters, traced with shapes alone."""

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
from depthmup_flax.networks.adapters import Call, abstract, adapter_of, function_of_parameters, once_for_shapes
from depthmup_flax.networks.model_functions import ModelFunctions
from depthmup_flax.networks.user_code import shapes_of
from depthmup_flax.rule.info_trees import root_mean_square
from depthmup_flax.trace.graph import Graph
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
    initial: Callable[[], ArrayTree]  # -> its initial parameters; shapes, if the model was given by them

    def initial_sizes(self, paths: Mapping[str, str]) -> Callable[[], Mapping[str, float]]:
        """A function: path -> root mean square of the initial values at the other path; empty if these are not known.

        They are drawn at the first call.
        """

        @functools.cache
        def sizes() -> Mapping[str, float]:
            arrays = {path: trees.value_of(leaf) for path, leaf in trees.flatten(self.initial(), "base")[0].items()}
            if any(isinstance(array, (jax.ShapeDtypeStruct, jax.core.Tracer)) for array in arrays.values()):
                return {}
            return {path: root_mean_square(arrays[other]) for path, other in paths.items()}

        return sizes


def as_model(model: Any, x: ArrayTree, argument: str, output: Output, kwargs: Mapping[str, Any], known: Known) -> Model:
    """A Linen, NNX or Equinox module, a pair or a `ModelFunctions`, traced on a batch of the shapes of ``x``.

    ``argument`` names the model in errors; ``known``: see `depthmup_flax.audit`. `InputError` if the forward pass fails
    or does not return ``output``.
    """
    if not any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(x)):
        raise InputError(f"x is {shown(x)}: pass a batch that the model takes, an array or a jax.ShapeDtypeStruct.")
    inputs = jax.tree.map(abstract, x)
    if isinstance(model, ModelFunctions) and not known:
        return _of_functions(model, inputs, argument, output)
    return _traced(model, inputs, argument, output, kwargs, known)


@once_for_shapes
def _of_functions(model: ModelFunctions, inputs: ArrayTree, argument: str, output: Output) -> Model:
    return _traced(model, inputs, argument, output, {}, {})


def _traced(
    model: Any, inputs: ArrayTree, argument: str, output: Output, kwargs: Mapping[str, Any], known: Known
) -> Model:
    is_function = type(model) is tuple and callable(model[0])
    adapter = function_of_parameters(model) if is_function else adapter_of(model)
    if adapter is None and not isinstance(model, ModelFunctions):
        right = "a Linen, NNX or Equinox module (an instance), or a pair (function, parameters)"
        raise InputError(f"{argument} is {shown(model)}: pass {right} with function(parameters, x).")

    def apply(params: ArrayTree, state: ArrayTree, batch: ArrayTree) -> Any:
        key = jax.random.key(0)  # traced: the audit makes no array
        if adapter is None:
            return model.apply(params, state, batch, train=True, key=key)[0]
        return adapter.apply(params, state, batch, Call(key, kwargs=kwargs))[0]

    try:
        params, state = model.boxed_shapes(inputs) if adapter is None else adapter.shapes(inputs, Call(kwargs=kwargs))
        leaves, structure = trees.flatten(params, argument)
        inner = jax.tree.structure(params)
        run = lambda flat, state, batch: selected(
            apply(jax.tree.unflatten(inner, [flat[path] for path in leaves]), state, batch), output
        )
        graph = trace(run, {path: trees.abstract(leaf) for path, leaf in leaves.items()}, state, inputs, known)
    except InputError:
        raise
    except Exception as error:
        message = (str(error).strip().splitlines() or [""])[0]
        raise InputError(
            f"the call {argument}(x) with x = {shapes_of(inputs)} failed, {type(error).__name__}: {message}. The parts "
            "of a tuple are the model's arguments; audit passes keyword arguments on."
        ) from error

    def initial() -> ArrayTree:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), inputs)
        draw = adapter.init if adapter is not None else None
        if adapter is not None and adapter.library == "function":
            return params
        if draw is None:
            return drawn(lambda key: model.init(key, zeros)[0], jax.random.key(0))
        return drawn(lambda key: draw(key, zeros, Call(kwargs=kwargs))[0], jax.random.key(0))

    return Model(leaves, structure, {path: trees.shape_of(leaf) for path, leaf in leaves.items()}, graph, initial)


def selected(result: Any, output: Output) -> Any:
    """The outputs among the results of a call."""
    if output is None:
        return result
    if callable(output):
        return output(result)
    if isinstance(output, (tuple, list)):  # each makes a readout of its own
        return jnp.concatenate([x.ravel() for one in output for x in jax.tree.leaves(selected(result, one))])
    if isinstance(output, str) and not isinstance(result, Mapping) and hasattr(result, output):
        return getattr(result, output)
    try:
        return result[output]
    except (KeyError, IndexError, TypeError) as error:
        names = f"the keys {sorted(map(str, result))}" if isinstance(result, Mapping) else shapes_of(result)
        raise InputError(f"output is {output!r}, but the model returns {names}: name one of its results.") from error
