"""Any network, whichever library it comes from, as pure functions that compute parameters and outputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from depthmup_flax.auditing.given_model import ForwardPass
from depthmup_flax.networks import library_adapters as adapters
from depthmup_flax.networks.calls import calling
from depthmup_flax.networks.fields import takes
from depthmup_flax.rule.info_trees import is_equinox, is_nnx
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree


@dataclasses.dataclass(frozen=True)
class ModelFunctions:
    """A network as pure functions; ``jax.jit`` and ``jax.vmap`` over keys and parameters work on them.

    Attributes:
      name: of the user's class or function, for errors.
      init: (key, inputs) -> (params, state); nested dictionaries of arrays, for a pair what its ``init`` returns.
        ``state`` is what a step changes besides the parameters, such as running averages.
      apply: (params, state, inputs, train=, key=) -> (outputs, new state). A tuple of inputs is several arguments.
        ``key`` is for dropout; ``None`` where nothing is random.
      contained: tree with the paths of the parameters -> the same leaves in the containers of the user's library, such
        as ``nnx.state(model, nnx.Param)`` or Haiku's dictionary of modules.
      linen: the module, if it is a Linen one.
      nnx: key -> module, if it is an NNX one.
      model: (params, state) -> what the user's function returns; an NNX or Equinox module holds these values.

    All raise `UserCodeError` if the user's code fails.
    """

    name: str
    init: Callable[[jax.Array, ArrayTree], tuple[ArrayTree, ArrayTree]]
    apply: Callable[..., tuple[Any, ArrayTree]]
    contained: Callable[[Any], Any] = lambda params: params
    model: Callable[[ArrayTree, ArrayTree], Any] = lambda params, state: None
    linen: nn.Module | None = None
    nnx: Callable[[jax.Array], Any] | None = None

    def shapes(self, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        """Shapes of (params, state); ``inputs`` may be shapes. Nothing is computed."""
        return jax.eval_shape(lambda inputs: self.init(jax.random.key(0), inputs), inputs)

    def outputs(self, inputs: ArrayTree) -> Any:
        """Shapes of the outputs in training; ``inputs`` may be shapes."""
        run = lambda key, inputs: self.apply(*self.init(key, inputs), inputs, train=True, key=key)[0]
        return jax.eval_shape(lambda inputs: run(jax.random.key(0), inputs), inputs)

    def auditable(self, inputs: ArrayTree) -> tuple[Any, dict[str, Any]]:
        """What `depthmup_flax.audit` takes as a model, in training, and the arguments of its call."""
        if self.linen is not None:  # with its annotations, and fields that say what the width is
            return self.linen, adapters.training_flags(type(self.linen).__call__, True)
        forward = lambda params, state, batch: self.apply(params, state, batch, train=True, key=jax.random.key(0))[0]
        return ForwardPass(*self.shapes(inputs), forward), {}


def model_functions(make: Any, name: str = "") -> ModelFunctions:
    """The functions of the network that ``make`` returns.

    Args:
      make: the user's class or function with its fields bound. It is called with ``rngs`` (an ``nnx.Rngs``) or ``key``
        if it takes them, and returns a Linen, NNX or Equinox module, a Haiku ``Transformed`` or
        ``TransformedWithState``, or a pair (init, apply). A Linen module, a Haiku one and a pair may be given as they
        are.
      name: of ``make`` in errors, such as ``"my_package.net:Net"``.

    Raises:
      InputError: it returns something else, or a network whose values would be the same for every seed.
      UserCodeError: it fails.
    """
    name = name or getattr(getattr(make, "func", make), "__qualname__", type(make).__name__)
    if _needs_no_key(make):
        return _of_plain(name, make)
    if is_nnx(make, "Module") or is_equinox(make) or not callable(make):
        raise InputError(_of_other_kind(make, name))
    made = functools.partial(_made, make, name)
    returned = _traced(made)
    if _needs_no_key(returned):
        # Made anew, because what was made inside a trace may hold values of the trace.
        return _of_plain(name, made(jax.random.key(0)))
    if not (is_nnx(returned, "Module") or is_equinox(returned)):
        raise InputError(_of_other_kind(returned, name))
    if not (takes(make, "rngs") or takes(make, "key")):
        argument = "rngs" if is_nnx(returned, "Module") else "key"
        raise InputError(
            f"{name} returns {type(returned).__name__} but does not take {argument}: all seeds would start from the "
            f"same values. Give it a parameter {argument}, and make its layers with it."
        )
    with calling(name):
        if is_nnx(returned, "Module"):
            return _wrapped(name, adapters.nnx_functions(made), None, nnx=made)
        return _wrapped(name, adapters.equinox_functions(made), None)


def _made(make: Callable[..., Any], name: str, key: jax.Array) -> Any:
    """What the user's function returns for a key."""
    options: dict[str, Any] = {}
    if takes(make, "key"):
        options["key"] = key
    if takes(make, "rngs"):
        from flax import nnx

        options["rngs"] = nnx.Rngs(key)
    with calling(name):
        return make(**options)


def _traced(made: Callable[[jax.Array], Any]) -> Any:
    """What is returned, with tracers in place of arrays: nothing is computed."""
    result: list[Any] = []
    jax.eval_shape(lambda: result.append(made(jax.random.key(0))))
    return result[0]


def _is_haiku(model: Any) -> bool:
    kind = type(model)
    return kind.__module__.split(".")[0] == "haiku" and kind.__name__ in ("Transformed", "TransformedWithState")


def _is_pair(model: Any) -> bool:
    return isinstance(model, tuple) and len(model) == 2 and all(map(callable, model)) and not is_equinox(model[0])


def _needs_no_key(model: Any) -> bool:
    """Whether it is a network whose ``init`` makes the values."""
    return isinstance(model, nn.Module) or _is_haiku(model) or _is_pair(model)


def _of_plain(name: str, model: Any) -> ModelFunctions:
    """The functions of a network whose ``init`` makes the values."""
    if isinstance(model, nn.Module):
        return _wrapped(name, adapters.linen_functions(model), model, linen=model)
    functions = adapters.haiku_functions(model) if _is_haiku(model) else adapters.pair_functions(model)
    return _wrapped(name, functions, model)


def _wrapped(
    name: str,
    own: adapters.Functions,
    model: Any,
    *,
    linen: nn.Module | None = None,
    nnx: Callable[[jax.Array], Any] | None = None,
) -> ModelFunctions:
    """The functions, whose errors say what was called."""

    def init(key: jax.Array, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        with calling(f"{name}: init", inputs):
            return own.init(key, inputs)

    def apply(
        params: ArrayTree, state: ArrayTree, inputs: ArrayTree, *, train: bool, key: jax.Array | None
    ) -> tuple[Any, ArrayTree]:
        with calling(f"{name}.__call__", inputs):
            outputs, new = own.apply(params, state, inputs, train, key)
        # Averages are those of training.
        return outputs, new if train else state

    return ModelFunctions(name, init, apply, own.contained, own.filled or (lambda params, state: model), linen, nnx)


def _of_other_kind(model: Any, name: str) -> str:
    return (
        f"{name} gives {type(model).__name__}: it must return a Linen module, an NNX module (and take rngs), an "
        "Equinox module (and take key), a Haiku Transformed, or a pair (init, apply) with init(key, inputs) "
        "-> params and apply(params, inputs) -> outputs."
    )
