"""Several training steps in one call of the compiled program, which saves time on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from flax import struct

from depthmup_flax.data import Dataset

State = TypeVar("State")

# Most steps in a call, and how long a call may take: signals are answered between calls. On a GPU a call transposes
# stacked parameters and moments of lanes and back: a third of one step of 108 lanes of ResMLP 128x128, by estimate.
MOST_STEPS, CALL_S = 16, 1.0


@dataclasses.dataclass(frozen=True)
class Periods:
    """Steps between two events of a run; a period of 0 is never."""

    total: int  # steps of the run
    log_every: int
    eval_every: int = 0
    checkpoint_every: int = 0  # for checkpoints without an evaluation

    def logs_at(self, step: int) -> bool:
        """Whether a line of metrics follows ``step``."""
        return step % self.log_every == 0 or step == self.total

    def evaluates_at(self, step: int) -> bool:
        """Whether an evaluation follows ``step``."""
        return step == self.total or (bool(self.eval_every) and step % self.eval_every == 0)

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint without an evaluation follows ``step``."""
        return bool(self.checkpoint_every) and step % self.checkpoint_every == 0

    def steps_to_next(self, step: int) -> int:
        """Steps from ``step`` until the next of these events; a measurement of speed may go beyond ``total``."""
        periods = (self.log_every, self.eval_every, self.checkpoint_every)
        left = [self.total - step] if step < self.total else []
        return min([period - step % period for period in periods if period] + left)


@struct.dataclass
class Call:
    """What one call of a training program reads."""

    count: np.int32  # steps to take: an argument of the compiled program, so that it changes no result
    # For each of S possible steps and U seeds a batch: rows of the training data, int32 [S, U, B], or streamed examples
    # [S, U, B, ...]. There is no axis S if it is 1, and no U for the streamed batches of a single run.
    examples: Any


def take_steps(step: Callable[[State, Any], State], state: State, call: Call, most: int) -> State:
    """Takes the steps of ``call``, which has room for ``most``."""
    if most == 1:
        return step(state, call.examples)

    def take(i: jax.Array, state: State) -> State:
        return step(state, jax.tree.map(lambda x: x[i], call.examples))

    return jax.lax.fori_loop(0, call.count, take, state)


def abstract_examples(dataset: Dataset, shape: Sequence[int]) -> Any:
    """Shapes and dtypes of `Call.examples` with the axes ``shape``."""
    if dataset.placement != "stream":
        return jax.ShapeDtypeStruct(tuple(shape), np.int32)
    one = dataset.train.read(np.arange(1))
    return {name: jax.ShapeDtypeStruct((*shape, *x.shape[1:]), x.dtype) for name, x in one.items()}


class CallLength:
    """The number of steps of the next call: as many as run in `CALL_S`, at most ``most``, none beyond an event.

    With ``measures``, the last step before an event is a call of its own.
    """

    def __init__(self, most: int, periods: Periods, *, measures: bool = False) -> None:
        self.most, self._periods, self._measures = most, periods, measures
        self.steps = 1  # until a speed is known

    def at(self, step: int) -> int:
        """Steps of the call that begins after ``step``."""
        left = self._periods.steps_to_next(step)
        return min(self.steps, self.most, left - 1 if self._measures and left > 1 else left)

    def adapt(self, steps_per_s: float) -> None:
        """Sets `steps` by a measured speed."""
        self.steps = max(1, min(self.most, int(steps_per_s * CALL_S)))
