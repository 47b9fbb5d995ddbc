"""An optax optimizer that records what a run's first steps do, to be compared with those of another size."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup_flax.rule.info_trees import audit_of, info_of
from depthmup_flax.rule.measures import measures
from depthmup_flax.rule.parametrization import PRESETS, Parametrization
from depthmup_flax.util.errors import InputError, require_number, shown
from depthmup_flax.util.types import ArrayTree, InfoTree

LOSS, STEP, NUMBERS = "loss", "step", "numbers"
BASE = "base_parameters"  # the number that tells whether two audits have one base model
STEPS = tuple(2**i for i in range(8))  # 1, 2, 4, ..., 128


class RecordedState(NamedTuple):
    """The state of the optimizer inside, and what was measured."""

    inner: Any
    step: jax.Array
    columns: dict[str, jax.Array]  # name -> a value for each of `STEPS`
    loss_sum: jax.Array  # since the last of them
    numbers: dict[str, jax.Array]  # settings that runs of all sizes share


def record_course(
    optimizer: optax.GradientTransformation,
    info: InfoTree,
    rule: Parametrization = PRESETS["depth_mup"],
    *,
    degree: float | None = 0,
    geometry: str | ArrayTree | None = None,
    **numbers: float,
) -> optax.GradientTransformationExtraArgs:
    """``optimizer``, which also measures its steps 1, 2, 4, ..., 128 by `depthmup_flax.measures`; updates stay.

    Give it to any training loop in place of ``optimizer``, for the base model and for the large one;
    `depthmup_flax.compare_runs` compares their states. Pass the loss as ``value=loss`` to ``update``, as for
    ``optax.contrib.reduce_on_plateau``, and it is recorded, too: the mean since the last of these steps.

    Args:
      optimizer: the whole optimizer, with rate and decay: of this package, or of optax.
      info, rule: what the audit says of the model, and the rule, as for `depthmup_flax.adamw`.
      degree, geometry: as in `depthmup_flax.measures`; for SGD ``degree=1``.
      **numbers: what both runs must share beside the bits of parameters, such as ``batch_size=64, weight_decay=0.1``.
    """
    if not isinstance(optimizer, optax.GradientTransformation):
        raise InputError(f"optimizer is {shown(optimizer)}: pass an optimizer of optax, such as dm.adamw(rate, info).")
    for name, value in numbers.items():
        require_number(name, value)
    info = info_of(info)
    inner = optax.with_extra_args_support(optimizer)

    def measured(gradients: ArrayTree, updates: ArrayTree, params: ArrayTree, state: Any) -> dict[str, jax.Array]:
        trace = optax.tree_utils.tree_get(state, "trace") if degree == 1 else None
        found = measures(info, rule, gradients, updates, params, trace, degree=degree, geometry=geometry)
        return {name: value.astype(jnp.float32) for name, value in found.items()}

    def init(params: ArrayTree) -> RecordedState:
        state = inner.init(params)
        names = jax.eval_shape(measured, params, params, params, state)
        bits = [jnp.finfo(x.dtype).bits for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating)]
        shared = {"parameter_bits": min(bits, default=0), **numbers}
        audit = audit_of(info)
        if audit is not None and audit.base:
            shared[BASE] = sum(map(math.prod, audit.base.values()))
        return RecordedState(
            inner=state,
            step=jnp.zeros((), jnp.int32),
            columns={name: jnp.full(len(STEPS), jnp.nan) for name in (*names, LOSS)},
            loss_sum=jnp.zeros(()),
            numbers={name: jnp.asarray(value, jnp.float32) for name, value in shared.items()},
        )

    def update(
        updates: ArrayTree, state: RecordedState, params: ArrayTree | None = None, **extra: Any
    ) -> tuple[ArrayTree, RecordedState]:
        if params is None:
            raise InputError(
                "params is None: record_course compares updates with them. Pass update(grads, state, params)."
            )
        after, inner_state = inner.update(updates, state.inner, params, **extra)
        step = state.step + 1
        row = step == np.array(STEPS)
        first = jnp.where(row, np.array((0, *STEPS[:-1])), 0).sum()
        loss_sum = state.loss_sum + jnp.asarray(extra.get("value", jnp.nan), jnp.float32)

        def with_row(columns: dict[str, jax.Array]) -> dict[str, jax.Array]:
            values = measured(updates, after, params, inner_state) | {LOSS: loss_sum / (step - first)}
            return {name: jnp.where(row, values[name], column) for name, column in columns.items()}

        columns = jax.lax.cond(row.any(), with_row, lambda columns: dict(columns), state.columns)
        kept = jnp.where(row.any(), 0.0, loss_sum)
        return after, RecordedState(inner_state, step, columns, kept, state.numbers)

    return optax.GradientTransformationExtraArgs(init, update)


def recorded_columns(opt_state: Any) -> dict[str, Any]:
    """``step``, the other names -> columns, and ``numbers``, of the state of an optimizer by `record_course`.

    Raises:
      InputError: there is none in it.
    """
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, RecordedState))
    states = [leaf for leaf in leaves if isinstance(leaf, RecordedState)]
    if not states:
        raise InputError(
            "the optimizer's state has no course: make the optimizer with dm.record_course(optimizer, info)."
        )
    number = lambda x: np.asarray(x[...])  # of an array, or of the Variable that NNX makes of it
    state = states[0]
    taken = sum(step <= int(number(state.step)) for step in STEPS)
    digits = lambda value: float(f"{value:.5g}") if np.isfinite(value) else None
    columns = {name: list(map(digits, number(column)[:taken].tolist())) for name, column in state.columns.items()}
    numbers = {name: digits(float(number(value))) for name, value in state.numbers.items()}
    return {STEP: list(STEPS[:taken]), **columns, NUMBERS: numbers}
