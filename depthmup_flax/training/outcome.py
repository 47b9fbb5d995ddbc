"""What became of a run: the numbers of its state, on the host, and whether it completed or diverged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import jax

from depthmup_flax.records import COMPLETED, DIVERGED
from depthmup_flax.training.metrics import finite_or_none
from depthmup_flax.training.step import TrainState

# The status of a run that a signal ended; it has no ``result.json``.
PREEMPTED = "preempted"


@dataclasses.dataclass(frozen=True)
class Reading:
    """The numbers of a `TrainState`.

    Attributes:
      step: steps taken.
      last_loss: of the last step.
      nonfinite_step: the first step whose loss was not finite, or -1.
      recent: mean loss and accuracy since the last multiple of ``log_every``.
      final: mean loss and accuracy over the last ``average_steps`` steps of the run.
    """

    step: int
    last_loss: float
    nonfinite_step: int
    recent: tuple[float, float]
    final: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended; fields are those of `depthmup_flax.records.Record`."""

    status: str
    train_loss: float | None
    train_loss_avg: float | None
    test_loss: float | None
    test_accuracy: float | None
    steps: int
    diverged_at_step: int | None


def read(state: TrainState) -> Reading:
    """The numbers of ``state``; waits for the device."""
    state = jax.device_get(_scalars(state))
    return Reading(
        step=int(state.step),
        last_loss=float(state.last_loss),
        nonfinite_step=int(state.nonfinite_step),
        recent=state.recent.means(),
        final=state.final.means(),
    )


def read_lanes(state: TrainState) -> list[Reading]:
    """The numbers of every lane of a state whose arrays have a leading axis of lanes."""
    numbers = jax.device_get(_scalars(state))
    return [read(jax.tree.map(lambda x, lane=lane: x[lane], numbers)) for lane in range(len(numbers.step))]


def outcome(
    reading: Reading,
    test: Mapping[str, float] | None,
    number: Callable[[float], float | None] = finite_or_none,
) -> Outcome:
    """The outcome of a run that has ended: diverged if a training loss or the test loss was not finite.

    Args:
      reading: of the run's last state.
      test: ``test_loss`` and ``test_accuracy``; ``None`` if the run was not evaluated.
      number: turns a number into JSON; ``None`` stands for what is not finite.
    """
    diverged_at = reading.nonfinite_step if reading.nonfinite_step >= 0 else None
    if diverged_at is None and test is not None and not math.isfinite(test["test_loss"]):
        diverged_at = reading.step  # the last update was one too many
    evaluated = test if diverged_at is None and test is not None else {}
    return Outcome(
        status=COMPLETED if diverged_at is None else DIVERGED,
        train_loss=number(reading.last_loss),
        train_loss_avg=number(reading.final[0]),
        test_loss=number(evaluated["test_loss"]) if evaluated else None,
        test_accuracy=number(evaluated["test_accuracy"]) if evaluated else None,
        steps=reading.step,
        diverged_at_step=diverged_at,
    )


def _scalars(state: TrainState) -> TrainState:
    """``state`` without its large arrays."""
    return dataclasses.replace(state, params=None, batch_stats=None, opt_state=None)
