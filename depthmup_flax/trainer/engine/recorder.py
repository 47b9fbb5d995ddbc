"""What a run measures of its network after some of its first steps: the course."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from depthmup_flax.rule.measures import measures, sampled
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.trainer.engine.task import NO_COURSE, Course, Hyper, TrainState
from depthmup_flax.util.types import ArrayTree, InfoTree


@dataclasses.dataclass(frozen=True)
class Recorder:
    """The names and steps of a course, and the functions that measure it."""

    course: Course = NO_COURSE
    # What `record` reads of parameters or of their gradients.
    sample: Callable[[ArrayTree], ArrayTree] = lambda tree: tree
    # (hyperparameters, row [N], state, gradients, sample of the parameters before) -> the state's course with one more
    # row, of the step that led to the state
    record: Callable[[Hyper, jax.Array, TrainState, Any, Any], Any] = lambda hyper, row, state, *_: state.course


NO_RECORDER = Recorder()


def recorder_of(
    params: ArrayTree,
    info: InfoTree,
    rule_under: Callable[[Hyper], Parametrization],
    updates: Mapping[str, Any],
    *,
    nesterov: bool,
    whole: bool,
    total_steps: int,
) -> Recorder:
    """The recorder of a network.

    Args:
      params: shapes of the parameters.
      info: of the parameters.
      rule_under: hyperparameters -> the rule.
      updates: ``degree`` and ``geometry``, see `depthmup_flax.trainer.engine.config_optimizer.update_facts`.
      nesterov: whether the optimizer's momentum is Nesterov's: then no update is a multiple of it.
      whole: measure whole arrays: else a part of an array that is split over devices would be sent.
      total_steps: of the run.
    """
    degree, geometry = updates.get("degree"), updates.get("geometry")
    known = {"degree": None if degree == 1 and nesterov else degree, "geometry": geometry}
    has_momentum = degree == 1

    def with_info(tree: ArrayTree) -> tuple[InfoTree, ArrayTree]:
        return (info, tree) if whole else sampled(info, tree, geometry)

    def sample(tree: ArrayTree) -> ArrayTree:
        return with_info(tree)[1]

    def record(hyper: Hyper, row: jax.Array, state: TrainState, gradients: Any, before: Any) -> Any:
        of_sample, after = with_info(state.carry.params)
        trace = optax.tree_utils.tree_get(state.carry.opt_state, "trace") if has_momentum else None
        momentum = trace and sample(jax.tree.map(_unmasked, state.carry.params, trace))
        # The step's own updates would have to be kept in memory, and its parameters could not be replaced in place.
        updates = jax.tree.map(jnp.subtract, after, before)
        found = measures(of_sample, rule_under(hyper), gradients, updates, before, momentum, **known)
        column = jnp.stack([found[name].astype(jnp.float32) for name in course.names])[:, None]
        return (jnp.where(row, column, *state.course),)

    measured = functools.partial(measures, info, rule_under({}), **known)
    course = Course.of(tuple(jax.eval_shape(measured, params, params, params)), total_steps)
    return Recorder(course, sample, record)


def _unmasked(param: jax.Array, kept: Any) -> Any:
    """The momentum of a parameter: zeros of a frozen one, which has none."""
    return jnp.zeros_like(param) if isinstance(kept, optax.MaskedNode) else kept
