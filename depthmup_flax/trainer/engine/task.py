"""What is trained, as pure functions of hyperparameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from depthmup_flax.trainer.engine.means import Means
from depthmup_flax.util.types import Scalar

# Hyperparameters by name: numbers or traced scalars.
Hyper = Mapping[str, Scalar]
# Scalars of a step or of a batch by name, among them "loss".
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Task:
    """Pure functions that initialize, train and evaluate something. Batch statistics, losses, optimizers are theirs.

    Each is traced once and compiled, for one run or, by `jax.vmap`, for many that differ in ``hyper`` and in the key.

    Attributes:
      init: ``(key, hyper) -> state``. The state is a tree; whatever is not an array in it must not change.
      step: ``(state, batch, hyper) -> (state, metrics)``, or with a fourth argument ``key``, another one in every step.
        Metrics are scalars by name, among them ``loss``. A run ends when it is not finite.
      evaluate: ``(state, batch, hyper) -> metrics``, means over the examples of the batch; ``None``: no evaluation.
      finite: ``state -> tree`` of what must be finite before a checkpoint is written; by default only NaN is refused.
      masked: ``batch["mask"]`` [B] says which examples of a test batch count, and ``evaluate`` returns `Means`.
        Otherwise the last batch of the test split has fewer examples.
    """

    init: Callable[..., Any]
    step: Callable[..., tuple[Any, Metrics]]
    evaluate: Callable[..., Metrics | Means] | None = None
    finite: Callable[[Any], Any] = lambda state: ()
    masked: bool = False
