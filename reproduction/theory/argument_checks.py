"""What theories refuse: arguments out of range, and training that diverges."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from depthmup_flax.util.errors import InputError

LAYERS = ("stem", "blocks", "readout")

_HUGE = 1e6  # outputs this many times the targets have diverged, even if they are finite


def require_number(name: str, value: Any, at_least: float = -math.inf) -> None:
    """InputError unless ``value`` is a finite number in this range; a traced one passes."""
    if isinstance(value, jax.core.Tracer):
        return
    number = isinstance(value, (int, float, np.generic, np.ndarray, jax.Array)) and np.ndim(value) == 0
    if not number or not math.isfinite(value) or value < at_least:
        bound = f" of at least {at_least:g}" if at_least > -math.inf else ""
        raise InputError(f"{name} is {value!r}: use a finite number{bound}.")


def require_whole(name: str, value: object, at_least: int = 1, *, also: str = "") -> None:
    """InputError unless ``value`` is a whole number of at least ``at_least``; ``also`` names other values allowed."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < at_least:
        raise InputError(f"{name} is {value!r}: use a whole number of at least {at_least}{also}.")


def require_finite(name: str, values: ArrayLike) -> None:
    """InputError if an array has entries that are not finite; a traced one passes."""
    if not isinstance(values, jax.core.Tracer) and not np.isfinite(np.asarray(values)).all():
        raise InputError(f"{name} has entries that are not finite: look for NaN in the data.")


def require_layers(trained: Sequence[str]) -> None:
    """InputError unless ``trained`` names some of ``LAYERS``."""
    named = isinstance(trained, (tuple, list)) and set(trained) <= set(LAYERS)
    if not named or not trained or len(set(trained)) < len(trained):
        raise InputError(f"trained is {trained!r}: use a list of some of {', '.join(LAYERS)}.")


def require_branch(alpha: Any, block_depth: Any, zero_init_branch: bool, pre_nonlin: bool) -> None:
    """Checks what a residual branch is."""
    require_number("alpha", alpha, 0.5)
    require_whole("block_depth", block_depth)
    if zero_init_branch and not pre_nonlin:
        raise InputError(
            "zero_init_branch is True: theory has it for pre_nonlin=True alone. Use that, or zero_init_branch=False."
        )


def require_training(
    depth: int, gamma0: float, learning_rate: float, branch_multiplier: float, targets: jax.Array, lazy: str
) -> None:
    """Checks the arguments that all theories of training take; ``lazy`` is the call for the limit of gamma0 = 0."""
    require_whole("depth", depth)
    require_number("gamma0", gamma0)
    if not isinstance(gamma0, jax.core.Tracer) and gamma0 <= 0:
        raise InputError(f"gamma0 is {gamma0}: use a positive number; the limit of 0 is {lazy}.")
    require_number("learning_rate", learning_rate, 0.0)
    require_number("branch_multiplier", branch_multiplier)
    require_finite("targets", targets)


def require_populations(steps: object, populations: object) -> None:
    """Checks what theories take that are solved by samples: number of steps, and of independent repetitions."""
    require_whole("steps", steps)
    require_whole("populations", populations, 2)


def require_targets(
    loss: Callable[[jax.Array, jax.Array], jax.Array], targets: jax.Array, examples: int, each: str = "input"
) -> None:
    """InputError unless there is a target for each of the examples, called ``each``, and ``loss`` is elementwise."""
    if targets.shape != (examples,):
        raise InputError(f"targets has shape {targets.shape}: give ({examples},), a number for each {each}.")
    require_elementwise(loss, targets)


def require_elementwise(loss: Callable[[jax.Array, jax.Array], jax.Array], targets: jax.Array) -> None:
    """InputError unless ``loss`` gives one number for each example."""
    shape = jax.eval_shape(loss, targets, targets).shape
    if shape != targets.shape:
        raise InputError(f"loss gives shape {shape} for {targets.shape}: give one number for each example, no mean.")


def require_convergence(
    outputs_TxB: jax.Array,
    targets: jax.Array,
    learning_rate: float,
    stable_rate: Callable[[], float] = lambda: math.inf,
) -> None:
    """InputError if training diverged.

    ``stable_rate`` returns a learning rate that is stable before features move, or infinity if it is unknown. A rate
    below it that diverges is due to large targets, which move features too far.
    """
    if isinstance(outputs_TxB, jax.core.Tracer):
        return
    largest = float(np.abs(np.asarray(targets)).max())
    bounded = np.abs(np.asarray(outputs_TxB)).max(1) < _HUGE * max(1.0, largest)  # not of NaN
    if bounded.all():
        return
    remedy = f"use a smaller one, or smaller targets (up to {largest:g} here) or gamma0, which move features less"
    if (stable := stable_rate()) < learning_rate:
        remedy = f"use less than {stable:.2g}, which is stable while features do not move"
    outputs = f"outputs are not bounded from step {int(np.argmin(bounded))}"
    raise InputError(f"learning_rate is {learning_rate}: training diverges, {outputs}; {remedy}.")
