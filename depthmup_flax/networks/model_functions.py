"""Any network, whichever library it comes from, as pure functions of nested dictionaries of arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from depthmup_flax.networks import adapters
from depthmup_flax.networks.adapters import Activations, Adapter, Call, adapter_of, equinox_module, nnx_module
from depthmup_flax.networks.user_code import calling, takes
from depthmup_flax.rule.info_trees import is_equinox, is_nnx
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree


@dataclasses.dataclass(frozen=True, eq=False)  # modules may not be hashable, which jit would need
class ModelFunctions:
    """A network as pure functions; ``jax.jit`` and ``jax.vmap`` over keys and parameters work on them.

    Parameters and state are nested dictionaries of arrays; of a pair, what its ``init`` returns.
    """

    name: str  # of the user's class or function, in the `UserCodeError` that its errors become; "" for our models
    adapter: Adapter  # the network in its library
    start: Callable[[ArrayTree], ArrayTree] = lambda params: params  # changes the initial parameters

    def init(self, key: jax.Array, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        """New parameters and state: what a step changes besides the parameters, such as running averages."""
        with self._calling("init", inputs):
            params, state = self.adapter.plain(*self.adapter.init(key, inputs, Call(train=False)))
        return self.start(params), state

    def apply(
        self,
        params: ArrayTree,
        state: ArrayTree,
        inputs: ArrayTree,
        *,
        train: bool,
        key: jax.Array | None,
        **kwargs: Any,
    ) -> tuple[Any, ArrayTree]:
        """The outputs and the new state, which changes in training only. A tuple of inputs is several arguments.

        ``key`` is for dropout; ``None`` where nothing is random.
        """
        own = self.adapter.contained(params), self.adapter.contained_state(state)
        with self._calling("__call__", inputs):
            outputs, new = self.adapter.apply(*own, inputs, Call(key, train, kwargs))
        return outputs, self.adapter.plain(own[0], new)[1] if train else state

    def captured(
        self, params: ArrayTree, state: ArrayTree, inputs: ArrayTree, key: jax.Array
    ) -> tuple[Any, Activations]:
        """The outputs in training, and those of submodules by path, of libraries that tell them."""
        own = self.adapter.contained(params), self.adapter.contained_state(state)
        with self._calling("__call__", inputs):
            return self.adapter.captured(*own, inputs, Call(key, train=True))

    def shapes(self, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        """Shapes of (params, state); ``inputs`` may be shapes. Nothing is computed."""
        params, state = self.boxed_shapes(inputs)
        return jax.eval_shape(self.start, nn.unbox(params)), state

    @adapters.once_for_shapes
    def boxed_shapes(self, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        """The same before ``start``, with a Linen network's annotations."""
        with self._calling("init", inputs):
            shapes = self.adapter.shapes(inputs, Call(train=False))
            return shapes if self.linen is not None else self.adapter.plain(*shapes)

    @adapters.once_for_shapes
    def outputs(self, inputs: ArrayTree) -> Any:
        """Shapes of the outputs in training; ``inputs`` may be shapes."""
        run = lambda key, *arrays: self.apply(*arrays, train=True, key=key)[0]
        return jax.eval_shape(run, jax.random.key(0), *self.shapes(inputs), inputs)

    @property
    def linen(self) -> nn.Module | None:
        """The module, if it is a Linen one."""
        return self.adapter.model if self.adapter.library == "linen" else None

    def contained(self, params: Any) -> Any:
        """A tree with the paths of the parameters in the containers of the user's library, such as an ``nnx.State``."""
        return self.adapter.contained(params)

    def model(self, params: ArrayTree, state: ArrayTree) -> Any:
        """What the user's function returns; an NNX or Equinox module holds these values."""
        filled = self.adapter.filled
        if filled is None:
            return self.adapter.model
        return filled(self.adapter.contained(params), self.adapter.contained_state(state))

    def _calling(self, method: str, inputs: ArrayTree) -> contextlib.AbstractContextManager[None]:
        name = f"{self.name}: init" if method == "init" else f"{self.name}.{method}"
        return calling(name, inputs) if self.name else contextlib.nullcontext()


def model_functions(make: Any, name: str = "") -> ModelFunctions:
    """The functions of the network that ``make`` returns.

    Args:
      make: the user's class or function with its fields bound. It is called with ``rngs`` (an ``nnx.Rngs``) or ``key``
        if it takes them, and returns a Linen, NNX or Equinox module, a Haiku ``Transformed`` or
        ``TransformedWithState``, or a pair (init, apply). A Linen module, a Haiku one and a pair may be given as they
        are.
      name: of ``make`` in errors, such as ``"my_package.net:Net"``.
    """
    name = name or getattr(getattr(make, "func", make), "__qualname__", type(make).__name__)
    return ModelFunctions(name, _adapter(make, name))


_MAKERS = ("linen", "haiku", "pair")  # libraries whose values are made by their own init


def _adapter(make: Any, name: str) -> Adapter:
    """The adapter of the network that ``make`` returns or is; see `model_functions`."""
    given = adapter_of(make)
    if given is not None and given.library in _MAKERS:
        return given
    if given is not None or not callable(make):
        raise InputError(_of_other_kind(make, name))
    made = functools.partial(_made, make, name)
    traced, parts = [], []

    def arrays() -> Any:
        """Those of a module that holds them; what else it is goes to ``parts``."""
        traced.append(made(jax.random.key(0)))
        held, *rest = _taken_apart(traced[0])
        parts.extend(rest)
        return held

    shapes = jax.eval_shape(arrays)  # a large network is not computed
    library = _library(traced[0])
    if library in _MAKERS:
        # Made anew, because what was made inside a trace may hold values of the trace.
        anew = adapter_of(made(jax.random.key(0)))
        assert anew is not None
        return anew
    if library not in ("nnx", "equinox"):
        raise InputError(_of_other_kind(traced[0], name))
    if not (takes(make, "rngs") or takes(make, "key")):
        argument = "rngs" if library == "nnx" else "key"
        raise InputError(
            f"{name} returns {type(traced[0]).__name__} but does not take {argument}: all seeds would start from the "
            f"same values. Give it a parameter {argument}, and make its layers with it."
        )
    if library == "nnx":
        from flax import nnx

        return nnx_module(nnx.merge(*parts, shapes), made)
    import equinox as eqx

    return equinox_module(eqx.combine(shapes, *parts), made)


def _library(model: Any) -> str:
    """`Adapter.library` of what a function has returned inside a trace, whose values are not looked at; "" of none."""
    if is_nnx(model, "Module"):
        return "nnx"
    if is_equinox(model):
        return "equinox"
    adapter = adapter_of(model)
    return "" if adapter is None else adapter.library


def _taken_apart(model: Any) -> tuple[Any, ...]:
    """The arrays of an NNX or Equinox module, and what else it is; of others, nothing."""
    if is_nnx(model, "Module"):
        from flax import nnx

        definition, state = nnx.split(model)
        return state, definition
    if is_equinox(model):
        import equinox as eqx

        return eqx.partition(model, eqx.is_array)
    return (None,)


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


def _of_other_kind(model: Any, name: str) -> str:
    return (
        f"{name} gives {type(model).__name__}: it must return a Linen module, an NNX module (and take rngs), an "
        "Equinox module (and take key), a Haiku Transformed, or a pair (init, apply) with init(key, inputs) "
        "-> params and apply(params, inputs) -> outputs."
    )
