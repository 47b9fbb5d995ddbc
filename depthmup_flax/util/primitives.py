"""What each primitive of JAX does: one table, and the sets of names that its readers ask for.

Every primitive is in one row. What is in none, as those of future versions of JAX, is not
understood. What a row does not tell is in the tables of `trace` (its docstring lists them), in
`auditing.degrees`, in `flops` for products, and in `jaxprs.called_jaxpr` for a primitive
that holds a jaxpr. `rule` reads the rows for optimizers.
"""

from __future__ import annotations

import math


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# --- one operand, whose entries the result has

# in the same places; "carry" is what a loop carries, in graphs of an audit
COPIES = _names(
    "carry conj convert_element_type copy copy_p imag name neg optimization_barrier real reduce_precision "
    "sharding_constraint stop_gradient"
)
# over devices
SHARED = _names("mesh_cast pcast pmax pmin psum psum2 psum_invariant pvary reshard")
# in other places; "scan_in", "scan_out" and "part" stand in graphs for what loops and devices take and put together
MOVES = _names(
    "all_gather broadcast_in_dim dynamic_slice expand_dims pad part reshape rev scan_in scan_out slice split squeeze "
    "stack tile transpose unstack"
)

# --- entry by entry

SUMS = _names("add add_any sub")
SCALES = _names("mul div")
# -> the power that the operand is taken to; of "integer_pow" it is the parameter y
POWERS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "integer_pow": math.nan}
BENDS = _names(
    "abs asinh atan2 clamp cos cosh erf erf_inv erfc exp exp2 expm1 log log1p logistic max min pow sign sin sinh tan "
    "tanh"
)
LESS, GREATER = _names("lt le"), _names("gt ge")
OTHERS = _names(
    "acos acosh and asin atan atanh bessel_i0e bessel_i1e cbrt ceil digamma eq floor igamma is_finite "
    "lgamma ne nextafter not or population_count rem round shift_left shift_right_arithmetic shift_right_logical xor"
)
RARE = _names("bitcast_convert_type clz igammac mulhi polygamma")  # entry by entry, but of no optimizer

# --- several entries

JOINS = _names("complex concatenate cond select_n")  # of arrays, whose entries the result has
ORDERS = _names("cumsum sort")  # a sum up to each entry has the size of one
TAKES = _names("gather")  # by activations
WRITES = _names("dynamic_update_slice scatter scatter-add")
SUMMED = _names("reduce_sum")
EXTREMES = _names("reduce_max reduce_min")
REDUCED = _names("reduce_and reduce_or reduce_prod")
WINDOWS = _names("reduce_window_sum")
BENDING_WINDOWS = _names("reduce_window_max")
PRODUCTS = _names("conv_general_dilated dot_general")
EXPERT_PRODUCTS = _names("ragged_dot ragged_dot_general")
ROTATIONS = _names("fft")
OTHER_SELECTIONS = _names(
    "approx_top_k iota scatter-max scatter-min scatter-mul scatter-sub scatter_add select_and_gather_add "
    "select_and_scatter select_and_scatter_add top_k"
)
BETWEEN_DEVICES = _names("all_to_all axis_index pbroadcast ppermute ragged_all_to_all reduce_scatter")
DRAWS = _names("random_bits rng_bit_generator rng_uniform threefry2x32")
KEYS = _names("random_clone random_fold_in random_gamma random_seed random_split random_unwrap random_wrap")

# --- what readers ask

SAME_PLACE = COPIES | SHARED
RAISED = frozenset(POWERS)
NONLINEAR = BENDS | BENDING_WINDOWS
# Each result is that of one operand.
PARALLEL = _names("optimization_barrier") | SHARED - _names("mesh_cast pcast pvary reshard")
# A constant keeps its number; so does each array of equal numbers.
KEEPS_NUMBER = (SAME_PLACE - _names("carry imag neg optimization_barrier real psum psum2 psum_invariant pmax pmin")) | (
    MOVES - _names("dynamic_slice pad part scan_in scan_out stack unstack") | EXTREMES
)
# An entry of the result depends on one entry of each operand.
ENTRYWISE = SAME_PLACE | SUMS | SCALES | RAISED | BENDS | _names("complex select_n")
# A multiplied operand multiplies the result, and a sum of operands gives the sum of results, or one of them.
LINEAR = SAME_PLACE | MOVES | JOINS | ORDERS | TAKES | WRITES | EXTREMES | WINDOWS
# The stream of a model is still the stream: linear without parameters, and no mean.
KEEPS_STREAM = SAME_PLACE | MOVES | JOINS | TAKES | WINDOWS
# The next array of a stream, if a sum of it is not read.
CARRIES = SAME_PLACE | MOVES | SUMS | SCALES | SUMMED | _names("concatenate scatter-add select_n")
# The result is a part of the operand.
PARTS = _names("slice split dynamic_slice unstack part")
LOOKUPS = TAKES | _names("dynamic_slice")
UNDERSTOOD = (
    LINEAR | SUMS | SCALES | RAISED | NONLINEAR | LESS | GREATER | OTHERS | RARE | SUMMED | REDUCED | PRODUCTS
    | EXPERT_PRODUCTS | ROTATIONS | OTHER_SELECTIONS | BETWEEN_DEVICES | DRAWS | KEYS
)  # fmt: skip
# Of an optimizer: an entry of the update depends on the same entries of the gradients.
OF_ONE_ENTRY = (
    (COPIES - _names("carry name optimization_barrier stop_gradient")) | SUMS | SCALES | RAISED | BENDS | LESS
    | GREATER | OTHERS | _names("complex device_put select_n")
)  # fmt: skip
# They keep the order of the entries where they keep their number, as a sum over an axis of size 1 does.
KEEPS_ORDER = SUMMED | EXTREMES | REDUCED | _names(
    "broadcast_in_dim concatenate dynamic_slice expand_dims reshape slice squeeze"
)  # fmt: skip


def is_understood(primitive: str) -> bool:
    """Whether what a primitive of this name computes is understood."""
    return primitive in UNDERSTOOD or primitive.startswith(("reduce_", "arg", "cum"))
