"""A count of the floating-point operations of a jaxpr."""

from __future__ import annotations

import math
from typing import Any

from jax.extend import core

from depthmup_flax.util.jaxprs import opened, repeated_jaxprs


def count_flops(jaxpr: Any) -> int:
    """Floating-point operations of the matrix products and convolutions, on all devices together.

    A multiplication and an addition count as two. The body of a scan counts once per iteration, unlike in XLA's
    ``cost_analysis``; that of a loop of unknown length counts once.
    """
    return sum(_of_equation(eqn) for eqn in opened(jaxpr)[0].eqns)


def _of_equation(eqn: core.JaxprEqn) -> int:
    if eqn.primitive.name == "dot_general":
        return _of_product(eqn)
    if eqn.primitive.name == "conv_general_dilated":
        return _of_convolution(eqn)
    if eqn.primitive.name == "cond":  # one branch runs
        branches = eqn.params["branches"]
        if eqn.params.get("branches_platforms"):  # one for each platform; the last is the default
            branches = branches[-1:]
        return max(count_flops(branch) for branch in branches)
    return sum(times * count_flops(inner) for inner, times in repeated_jaxprs(eqn))


def _of_product(eqn: Any) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    return 2 * eqn.outvars[0].aval.size * math.prod(left[i] for i in contracted)


def _of_convolution(eqn: Any) -> int:
    params = eqn.params
    kernel = eqn.invars[1].aval.shape
    output_features = kernel[params["dimension_numbers"].rhs_spec[0]]
    # Zeros between the entries, in the gradient of a convolution with strides, need no operations.
    products = eqn.outvars[0].aval.size * math.prod(kernel) // math.prod(params["lhs_dilation"])
    return 2 * products // output_features
