"""Initial values of any model as the rule wants them, from those it has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from depthmup_flax.errors import InputError
from depthmup_flax.infer.trees import flatten, require_same_paths, shape_of, value_of
from depthmup_flax.rule.info_trees import flatten_info
from depthmup_flax.rule.parametrization import Parametrization, ParamInfo, Role


def rescale_init(params: Any, base_params: Any, info: Any, parametrization: Parametrization) -> Any:
    """``params`` with every weight's standard deviation as the rule wants it, given the base model's.

    Hidden weights get ``std_base / sqrt(m_in)``, input and output weights ``std_base``; the output's 1/m is in the
    forward pass. So a model may start from ``lecun_normal``, whose hidden weights are right already, or from a fixed
    0.02. Vectors, fixed parameters and constants (zeros, ones) stay as they are, and ``standard`` changes nothing.

    Both standard deviations are measured, hence known up to a sampling error. Initializers that exist scale with powers
    of the fan-in or fan-out, so the correction is set to the closest ``m_in^a m_out^b`` with a, b in {-1/2, 0, 1/2} if
    that is within four standard errors: exactly 1 for a hidden ``lecun_normal`` and ``m^-1/2`` for a fixed 0.02.
    Otherwise it is the measured one.

    Not for use under ``jit``: it looks at values. There, measure `init_factors` outside and multiply by them.

    Args:
      params: fresh parameters of the model to train; arrays in any pytree, an ``nnx.State`` or a module.
      base_params: fresh parameters of the base model, from the same initializers.
      info: from `infer_info`.
      parametrization: the rule.

    Returns:
      Parameters in the containers of ``params``; the ``nnx.State`` of a module, for ``nnx.update(model, state)``.

    Raises:
      InputError: something other than arrays, or not what ``info`` was made for.
    """
    return multiplied(params, init_factors(params, base_params, info, parametrization))


def init_factors(params: Any, base_params: Any, info: Any, parametrization: Parametrization) -> dict[str, float]:
    """What `rescale_init`, which has the same arguments, multiplies the parameter of each path by."""
    leaves, base = flatten(params, "params")[0], flatten(base_params, "base_params")[0]
    known = flatten_info(info)
    require_same_paths(leaves, base, "the model", "the base model")
    require_same_paths(leaves, known, "the model", "info")
    for path, leaf in leaves.items():
        if shape_of(leaf) != known[path].shape:
            raise InputError(
                f"parameter {path!r} has shape {shape_of(leaf)}, but info was made for {known[path].shape}: call "
                "infer_info with these parameters."
            )
    return {
        path: _factor(path, _array(path, leaf), _array(path, base[path]), known[path], parametrization)
        for path, leaf in leaves.items()
    }


def multiplied(params: Any, factors: Mapping[str, float]) -> Any:
    """``params`` times a number per path; for use under ``jit`` too."""
    leaves, structure = flatten(params, "params")
    # An array is a leaf, a box or an nnx.Variable a node with one; the type of the array stays.
    new = [
        leaf if factors[path] == 1.0 else jax.tree.map(lambda x, f=factors[path]: x * jnp.asarray(f, x.dtype), leaf)
        for path, leaf in leaves.items()
    ]
    return jax.tree_util.tree_unflatten(structure, new)


def _array(path: str, leaf: Any) -> jax.Array:
    value = value_of(leaf)
    if isinstance(value, (jax.ShapeDtypeStruct, jax.core.Tracer)):
        raise InputError(
            f"parameter {path!r} is {type(value).__name__}, which has no values: call rescale_init outside jit, with "
            "the initialized parameters of both models (in a coordinate check, network.rescaled)."
        )
    return jnp.asarray(value)


def _factor(path: str, array: jax.Array, base: jax.Array, info: ParamInfo, rule: Parametrization) -> float:
    """What a weight is multiplied by at initialization."""
    if rule.width == "standard" or info.role in (Role.VECTOR, Role.FIXED):
        return 1.0
    constant, base_constant = (float(jnp.max(x)) == float(jnp.min(x)) for x in (array, base))
    if constant and base_constant:
        return 1.0
    if constant or base_constant:
        raise InputError(
            f"parameter {path!r} is constant in {'the model' if constant else 'the base model'} alone: initialize both "
            "models with the same initializers."
        )
    wanted = info.width_in**-0.5 if info.role is Role.HIDDEN else 1.0
    measured = wanted * _std(base) / _std(array)
    # The relative standard error of a normal sample's standard deviation is 1 / sqrt(2 n).
    tolerance = 4 * math.sqrt(0.5 / array.size + 0.5 / base.size)
    halves = (0.0, -0.5, 0.5)
    powers = [info.width_in**a * info.width_out**b for a, b in itertools.product(halves, halves)]
    closest = min(powers, key=lambda power: abs(math.log(measured / power)))
    return closest if abs(math.log(measured / closest)) <= tolerance else measured


def _std(array: jax.Array) -> float:
    return float(jnp.std(array.astype(jnp.float32)))
