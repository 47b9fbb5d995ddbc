"""How a run ended: the numbers of its last state, on the host, and whether it completed, diverged or was preempted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.storage.sweep_records import COMPLETED, DIVERGED, TEST, VALIDATION, finite_or_none
from depthmup_flax.trainer.engine.task import TrainState
from depthmup_flax.util.types import Json

# The status of a run that a signal ended; it has no ``result.json``.
PREEMPTED = "preempted"


_EVALUATED = [f"{split}_{name}" for split in (TEST, VALIDATION) for name in ("loss", "accuracy")]


def read(state: TrainState) -> TrainState:
    """The numbers of ``state`` on the host, without what the task carries; waits for the device."""
    return jax.device_get(dataclasses.replace(state, carry=None))


def outcome(
    numbers: TrainState,
    test: Mapping[str, float] | None,
    to_json: Callable[[float], float | None] = finite_or_none,
    *,
    finite: bool = True,
) -> Json:
    """How a run has ended, as fields of `Record`: diverged if a loss or the state was not finite.

    ``numbers`` are `read` of the last state, ``test`` its evaluation, if there was one; ``finite``: whether the
    parameters are finite, as far as known.
    """
    finite = finite and is_finite(test or {})
    diverged_at = int(numbers.nonfinite_step) if numbers.nonfinite_step >= 0 else None
    if diverged_at is None and not finite:
        diverged_at = int(numbers.step)  # the last update was one too many
    completed = diverged_at is None
    evaluated = {name: to_json(value) for name, value in (test or {}).items()} if completed else {}
    return {
        "status": COMPLETED if completed else DIVERGED,
        "train_loss": to_json(float(numbers.last_loss)),
        "train_loss_avg": to_json(numbers.final.means()["loss"]),
        **{name: evaluated.pop(name, None) for name in _EVALUATED},
        "test_metrics": evaluated,
        "steps": int(numbers.step),
        "diverged_at_step": diverged_at,
        "diverged_in": None if completed else diverged_in(numbers, test),
    }


def diverged_in(state: TrainState, test: Mapping[str, float] | None) -> str:
    """What was not finite first: the loss of a training step or of an evaluation, else an array of the state."""
    if int(state.nonfinite_step) >= 0:
        return "the training loss"
    for split in (TEST, VALIDATION):
        if not math.isfinite((test or {}).get(f"{split}_loss", 0.0)):
            return f"the {split} loss"
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.carry):
        known = leaf.is_fully_addressable and jnp.issubdtype(leaf.dtype, jnp.inexact)
        if known and not bool(jnp.isfinite(leaf).all()):
            return path_name(path)
    return "the state"


def is_finite(test: Mapping[str, float]) -> bool:
    """Whether the loss of an evaluation is finite; also without an evaluation."""
    return all(math.isfinite(test.get(f"{split}_loss", 0.0)) for split in (TEST, VALIDATION))


def summary(result: Json) -> str:
    """``completed: 700 steps, test accuracy 97.3%, ...`` for the content of ``result.json``."""
    if result["status"] == PREEMPTED:
        text = f"preempted after step {result['steps']}"
    elif result["status"] == DIVERGED:
        what = result.get("diverged_in") or "the loss"
        text = f"diverged: {what} was not finite at step {result['diverged_at_step']}"
    else:
        mean = "not finite" if result["train_loss_avg"] is None else f"{result['train_loss_avg']:.4f}"
        text = f"completed: {result['steps']} steps, train loss {mean}"
        for split in (TEST, VALIDATION):
            loss, accuracy = result.get(f"{split}_loss"), result.get(f"{split}_accuracy")
            text += "" if loss is None else f", {split} loss {loss:.4f}"
            text += "" if accuracy is None else f", {split} accuracy {accuracy:.1%}"
    return f"{text}, {result['wall_time_s']:.0f} s"
