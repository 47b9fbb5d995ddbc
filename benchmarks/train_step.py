"""A training step of one of our models on raw batches, for a loop of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import optax

from depthmup_flax.auditing.config_audit import of_module
from depthmup_flax.trainer.engine.losses import CROSS_ENTROPY
from depthmup_flax.trainer.engine.network_task import network_task
from depthmup_flax.trainer.engine.task import Stepped, TrainState, batch_key, counted, new_state, step_key
from depthmup_flax.util.types import Batch


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    *,
    prepare: Callable[[jax.Array | None, Batch], tuple[Any, Any]],
    seed: int,
    log_every: int = 1,
) -> tuple[Callable[..., TrainState], Callable[[TrainState, Batch], Stepped]]:
    """``init(input_spec)`` and ``step(state, batch)``; ``prepare`` makes of a key and a batch inputs and targets."""
    task = lambda example: network_task(lambda hyper: (of_module(model), optimizer), example, CROSS_ENTROPY)

    def init(example: Any) -> TrainState:
        return new_state(task(example).init(jax.random.key(seed), {}), CROSS_ENTROPY.averaged)

    def step(state: TrainState, batch: Batch) -> Stepped:
        prepared = prepare(batch_key(seed, state.step), batch)
        carry, metrics = task(None).step(state.carry, prepared, {}, step_key(seed, state.step))
        return counted(state, carry, metrics, log_every, 0), metrics

    return init, step
