"""The compiled programs of a workload, wherever it runs."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from depthmup_flax.devices.parallel import sharding
from depthmup_flax.devices.process.compiler_options import drawing_options
from depthmup_flax.trainer.engine import multi_step
from depthmup_flax.trainer.engine.means import Means
from depthmup_flax.trainer.engine.multi_step import Call, CallLength, Periods, abstract_examples, take_steps
from depthmup_flax.trainer.engine.step import Stepped, TrainState, evaluate
from depthmup_flax.trainer.engine.workload import Workload
from depthmup_flax.util.types import ArrayTree, Batch


class Program(abc.ABC):
    """Initializes, trains and evaluates a workload, with the placement of a subclass.

    Args:
      workload: what is trained.
      mesh: of the devices.
      data: from `depthmup_flax.trainer.engine.device_batches.put_train_data`.
      periods: of the run, or of the runs.
      measures: a step that is logged is a call of its own.

    With a mesh of devices that are absent, and shapes of the data, it can be traced and compiled.
    """

    abstract_state: TrainState  # shapes, dtypes and shardings
    _abstract_values: Any  # of the hyperparameters that differ between lanes
    _leading: tuple[int, ...]  # axes of one step's examples, the last of them B
    _split: P  # of a call's examples
    _steps: jax.stages.Wrapped  # (state, values, call, data) -> state; the state is donated
    _evaluate: jax.stages.Wrapped  # (state, values, batch) -> Means

    def __init__(
        self, workload: Workload, mesh: Mesh, data: Batch | None, periods: Periods, *, measures: bool = False
    ) -> None:
        self.workload, self.mesh, self.periods, self._data = workload, mesh, periods, data
        self.call_length = CallLength(most_steps(workload, mesh), periods, measures=measures)
        self._drawing = drawing_options(sharding.platform(mesh))

    def traced(self) -> jax.stages.Traced:
        """The program of the training steps in a call."""
        return self._steps.trace(*self._arguments())

    @abc.abstractmethod
    def _step(self, values: Any, data: Batch | None, state: TrainState, examples: Any) -> Stepped:
        """The state after one step, and its metrics; ``examples`` are those of `Call` without its axis of steps."""

    def _take_steps(self, state: TrainState, values: Any, call: Call, data: Batch | None) -> TrainState:
        step = lambda state, examples: self._step(values, data, state, examples)[0]
        return take_steps(step, state, call, self.call_length.most)

    def _evaluated(self, state: TrainState, values: Any, batches: Iterable[Batch]) -> Means:
        return evaluate(functools.partial(self._evaluate, state, values), batches)

    def _arguments(self) -> tuple[TrainState, Any, Call, Batch | None]:
        """Shapes, dtypes and shardings of the arguments of `_steps`."""
        most, dataset = self.call_length.most, self.workload.dataset
        examples = abstract_examples(dataset, (*[most] * (most > 1), *self._leading))
        call = Call(self._placed(np.int32(0), P()), self._placed(examples, self._split))
        return self.abstract_state, self._abstract_values, call, self._data

    def _placed(self, tree: ArrayTree, spec: P) -> Any:
        """Shapes and dtypes of arrays that are split as ``spec`` says."""
        place = NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=place), tree)


def most_steps(workload: Workload, mesh: Mesh) -> int:
    """The most steps in a call of the workload's program.

    It is 1 for streamed examples, which arrive one batch at a time; for several processes, which agree after every step
    on whether to stop; and for convolutions on a CPU, which can be ten times slower in a loop. On a TPU a step in a
    loop takes 1.00 to 1.03 times a single call, by XLA's estimate; on a GPU small steps wait for the host.
    """
    streamed, several = workload.dataset.placement == "stream", jax.process_count() > 1
    pays = sharding.platform(mesh) != "cpu" or not workload.convolves
    return multi_step.MOST_STEPS if pays and not (streamed or several) else 1
