"""Floating-point operations of the matrix products and convolutions in a function, counted in its jaxpr.

A multiplication and an addition count as two operations. The body of a scan counts once per iteration, unlike in XLA's
``cost_analysis``.
"""

from __future__ import annotations

import math
from typing import Any

from depthmup_flax.util.jaxprs import opened, repeated_jaxprs


def count_flops(jaxpr: Any) -> int:
    """Operations of an open or closed jaxpr, on all of its devices together; of a loop of unknown length, one round."""
    return sum(map(_of_equation, opened(jaxpr)[0].eqns))


def _of_equation(equation: Any) -> int:
    params = equation.params
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2 * equation.outvars[0].aval.size * math.prod(left[i] for i in contracted)
    if equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        output_features = kernel[params["dimension_numbers"].rhs_spec[0]]
        # Zeros between the entries, in the gradient of a convolution with strides, need no operations.
        products = equation.outvars[0].aval.size * math.prod(kernel) // math.prod(params["lhs_dilation"])
        return 2 * products // output_features
    if equation.primitive.name == "cond":  # one branch runs
        branches = params["branches"]
        if params.get("branches_platforms"):  # the last is the default
            branches = branches[-1:]
        return max(count_flops(branch) for branch in branches)
    return sum(times * count_flops(inner) for inner, times in repeated_jaxprs(equation))
