"""Networks of one size on a fixed batch, for the check."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from depthmup_flax.auditing.given_model import Output, selected
from depthmup_flax.auditing.rescaled_init import init_factors, multiplied
from depthmup_flax.check.records import OUTPUT
from depthmup_flax.devices.host import drawn
from depthmup_flax.networks.adapters import Activations, Call
from depthmup_flax.networks.model_functions import ModelFunctions, model_functions
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.parametrization import PRESETS, Parametrization
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.flops import count_flops
from depthmup_flax.util.jaxprs import all_equations
from depthmup_flax.util.types import ArrayTree, InfoTree


@dataclasses.dataclass(frozen=True)
class Source:
    """The model of a network for `audit`: its arguments of these names.

    Without a ``base``, the smallest network of the check is the base model.
    """

    model: Any
    x: ArrayTree
    output: Output = None
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    base: Any = None


@dataclasses.dataclass(frozen=True)
class Network:
    """A network of one size on a fixed batch."""

    init: Callable[[jax.Array], ArrayTree]  # key -> parameters; pure
    # Parameters -> (outputs, activations by name); pure. Names are paths (``blocks/3/mlp``). A stack of layers is one
    # array, or one name per layer.
    apply: Callable[[ArrayTree], tuple[jax.Array, Activations]]
    info: InfoTree  # tree of `ParamInfo` with the structure of the parameters
    optimizer: optax.GradientTransformation  # complete optax optimizer, as used in training
    source: Source | None = None  # the model, which the check audits; ``None``: no audit

    def rescaled(
        self, base_init: Callable[[jax.Array], ArrayTree], rule: Parametrization = PRESETS["depth_mup"]
    ) -> Network:
        """The network with initial values corrected by `rescale_init`.

        The factors are measured once, on one key. ``base_init`` gives the parameters of the base model, such as
        ``lambda key: base.init(key, x)["params"]``.
        """
        params, base_params = (drawn(init, jax.random.key(0)) for init in (self.init, base_init))
        factors = init_factors(params, base_params, self.info, rule)
        return dataclasses.replace(self, init=lambda key: multiplied(self.init(key), factors))


def checked_network(
    model: Any,
    x: ArrayTree,
    *,
    info: InfoTree,
    optimizer: optax.GradientTransformation,
    output: Output = None,
    base: Any = None,
    **kwargs: Any,
) -> Network:
    """A network of any library as a `Network`; of Linen and NNX, the output of every submodule is recorded.

    Random numbers are the same at every step. Updates of the state are dropped: running averages stay at their initial
    values. Modules under ``nn.scan`` are recorded if ``variable_axes`` includes ``intermediates``.

    Args:
      model: a Linen module; a function of ``rngs`` or ``key`` that returns an NNX or Equinox module, such as
        ``lambda rngs: Net(64, rngs=rngs)``; a Haiku ``Transformed``; or a pair (init, apply).
      x: the batch; a tuple is passed as several arguments.
      info: from `audit` or `param_info`.
      optimizer: complete optax optimizer.
      output: selects the outputs among several results: a key, an index, or a function of the result. ``None``: the
        model returns only the outputs.
      base: the base model of the audit; by default the smallest network of the check.
      **kwargs: of the call, such as ``train=True`` for batch normalization.
    """
    key = jax.random.key(0)
    if isinstance(model, ModelFunctions):
        state = drawn(lambda key: model.init(key, x)[1], key)
        init = lambda key: model.init(key, x)[0]
        captured = lambda params: model.captured(params, state, x, key)
        audited: Any = model
    else:
        adapter, call = model_functions(model).adapter, Call(key, kwargs=kwargs)
        state = drawn(lambda key: adapter.init(key, x, call)[1], key)
        init = lambda key: nn.unbox(adapter.init(key, x, call)[0])
        captured = lambda params: adapter.captured(params, state, x, call)
        audited = model if isinstance(model, nn.Module) else adapter

    def apply(params: ArrayTree) -> tuple[jax.Array, Activations]:
        outputs, activations = captured(params)
        return selected(outputs, output), activations

    return Network(init, apply, info, optimizer, Source(audited, x, output, kwargs, base))


@dataclasses.dataclass(frozen=True)
class Traced:
    """A network and facts from its trace."""

    network: Network
    shapes: Mapping[str, jax.ShapeDtypeStruct]  # of the activations, and of the outputs under the name `OUTPUT`
    flops: int  # of the products and convolutions in one forward pass
    equations: int  # of its jaxpr; those in a loop count once


def traced(network: Network) -> Traced:
    """Traces the forward pass of a network; `InputError` if ``info`` or its functions are not those of a `Network`."""
    params = jax.eval_shape(network.init, jax.random.key(0))
    jaxpr, result = jax.make_jaxpr(network.apply, return_shape=True)(params)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise InputError("Network.apply must return (outputs, dictionary of activations): return {} to record none.")
    outputs = result[0]
    if not hasattr(outputs, "shape"):
        names = f" with the keys {sorted(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
        raise InputError(f"the network returns {type(outputs).__name__}{names}: select one array with output=.")
    shapes = [tuple(x.shape) for x in jax.tree.leaves(params)]
    if shapes != [leaf.shape for leaf in flatten_info(network.info).values()]:
        raise InputError("info is of another size than the network: audit a model of its sizes, which its base is not.")
    equations = list(all_equations(jaxpr))
    types = {getattr(x.aval, "dtype", None) for eqn in equations for x in (*eqn.invars, *eqn.outvars)}
    if low := [t.name for t in types if t and jnp.issubdtype(t, jnp.floating) and t.itemsize < 4]:
        raise InputError(f"the forward pass has numbers in {min(low)}: build the network in float32 for the check.")
    activations = {**result[1], OUTPUT: outputs}
    return Traced(network, activations, count_flops(jaxpr), len(equations))
