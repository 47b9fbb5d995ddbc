"""The compiled programs of an experiment, and those of one run, sharded over a mesh."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Generator, Iterable
from typing import Any, final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from depthmup_flax.data import train_stream
from depthmup_flax.devices import sharding
from depthmup_flax.devices.host import drawing_options
from depthmup_flax.storage.sweep_records import SEED
from depthmup_flax.trainer.engine.device_batches import (
    CallLength,
    StepsCall,
    abstract_examples,
    batch_of,
    calls,
    host_test_batches,
    read_ahead,
)
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.task import Means, Periods, Stepped, TrainState, batch_key
from depthmup_flax.util.errors import Preempted
from depthmup_flax.util.types import ArrayTree, Batch, HostBatch

# Most steps in a call, which saves time on the host. On a GPU a call transposes stacked parameters and moments of lanes
# and back: a third of one step of 108 lanes of ResMLP 128x128, by estimate.
MOST_STEPS = 16


class Program:
    """What programs of an experiment have in common; subclasses place runs on devices.

    ``data`` are from `put_train_data`. With a mesh of devices that are absent, and shapes of the data, it can be traced
    and compiled.
    """

    abstract_state: TrainState  # shapes, dtypes and shardings
    _abstract_values: Any  # of the hyperparameters that differ between lanes
    _leading: tuple[int, ...]  # axes of one step's examples, the last of them B
    _split: P  # of a call's examples
    _steps: jax.stages.Wrapped  # (state, values, call, data) -> state; the state is donated
    _evaluate: jax.stages.Wrapped  # (state, values, batch) -> Means

    def __init__(self, experiment: Experiment, mesh: Mesh, data: Batch | None, periods: Periods) -> None:
        self.experiment, self.mesh, self.periods, self._data = experiment, mesh, periods, data
        self.call_length = CallLength(_most_steps(experiment, mesh), periods)
        self._drawing = drawing_options(sharding.platform(mesh))

    @final
    def traced(self) -> jax.stages.Traced:
        """The program of the training steps in a call."""
        return self._steps.trace(*self._arguments())

    @final
    def _evaluated(self, state: TrainState, values: Any, batches: Iterable[Batch]) -> Means:
        return functools.reduce(Means.merge, (self._evaluate(state, values, batch) for batch in batches))

    @final
    def _arguments(self) -> tuple[TrainState, Any, StepsCall, Batch | None]:
        """Shapes, dtypes and shardings of the arguments of `_steps`."""
        most = self.call_length.most
        examples = abstract_examples(self.experiment.dataset, (*[most] * (most > 1), *self._leading))
        call = StepsCall(self._placed(np.int32(0), P()), self._placed(examples, self._split))
        return self.abstract_state, self._abstract_values, call, self._data

    @final
    def _placed(self, tree: ArrayTree, spec: P) -> Any:
        """Shapes and dtypes of arrays that are split as ``spec`` says."""
        place = NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=place), tree)


def take_steps(
    experiment: Experiment,
    length: CallLength,
    step: Callable[[TrainState, Any], Stepped],
    each: Callable[[Callable[..., Any]], Callable[..., Any]],
    state: TrainState,
    call: StepsCall,
) -> TrainState:
    """The state after the steps of a call, and what its course records of them.

    Args:
      experiment: what is trained.
      length: of calls.
      step: `Experiment.step` of ``examples``, those of `StepsCall` without the axis of steps.
      each: a function of the hyperparameters and trees of one run -> of the trees of all runs of the program.
      state: of all runs.
      call: steps and examples.
    """

    def take(i: jax.Array, taken: Stepped) -> Stepped:
        return step(taken[0], jax.tree.map(lambda x: x[i], call.examples))

    recorder, has_course = experiment.recorder, bool(experiment.course.names)
    before: Any = each(lambda _, state: recorder.sample(state.carry.params))(state) if has_course else ()
    if length.most == 1:
        after, gradients = step(state, call.examples)
    else:
        after, gradients = jax.lax.fori_loop(0, call.count, take, (state, before))  # samples have equal shapes
    if not has_course:
        return after
    row = experiment.course.records(state.step.ravel()[0]) & (call.count == 1)
    record = each(lambda own, *trees: recorder.record(own, row, *trees))
    course = jax.lax.cond(row.any(), lambda: record(after, gradients, before), lambda: after.course)
    return dataclasses.replace(after, course=course)


def _most_steps(experiment: Experiment, mesh: Mesh) -> int:
    """The most steps in a call of the experiment's program.

    It is 1 for streamed examples, which arrive one batch at a time; for several processes, which agree after every step
    on whether to stop; and for convolutions on a CPU, which can be ten times slower in a loop. On a TPU a step in a
    loop takes 1.00 to 1.03 times a single call, by XLA's estimate; on a GPU small steps wait for the host.
    """
    streamed, several = experiment.dataset.placement == "stream", jax.process_count() > 1
    pays = sharding.platform(mesh) != "cpu" or not experiment.convolves
    return MOST_STEPS if pays and not (streamed or several) else 1


class ShardedProgram(Program):
    """Trains one run. Programs are compiled at their first use; `compile` compiles `take`."""

    _abstract_values = None  # the hyperparameters are constants of the program

    def __init__(self, experiment: Experiment, mesh: Mesh, data: Batch | None) -> None:
        super().__init__(experiment, mesh, data, experiment.periods)
        shapes, size = experiment.state_shapes(), experiment.config.train.batch_size
        self._shardings = sharding.state_shardings(shapes, experiment.network.axes if experiment.network else {}, mesh)
        self.abstract_state = jax.tree.map(lambda x, s: x.update(sharding=s), shapes, self._shardings)
        streamed = experiment.dataset.placement == "stream"
        self._leading = (size,) if streamed else (1, size)
        self._split = P(sharding.BATCH_AXES) if streamed else P()
        self._one_step, self._evaluate_one = experiment.step({}), experiment.evaluate({})
        self._steps = jax.jit(self._take_steps, donate_argnums=0, out_shardings=self._shardings)
        self._take: Callable[..., TrainState] = self._steps
        self._evaluate = jax.jit(self._evaluate_batch, out_shardings=sharding.replicated(mesh))

    def initial_state(self) -> TrainState:
        """A fresh state; drawn compiled in any case, as Flax draws other numbers in a loop that is not."""
        init = functools.partial(self.experiment.init, {})
        with jax.disable_jit(False):
            return jax.jit(init, out_shardings=self._shardings, compiler_options=self._drawing)()

    def take(self, state: TrainState, call: StepsCall) -> TrainState:
        """The state after the steps of ``call``; ``state`` is donated."""
        return self._take(state, None, call, self._data)

    def compile(self) -> None:
        """Compiles `take`; not for several processes, or for JAX's debugging modes, which rerun a compiled step."""
        debugs = any(jax.config.values[f"jax_{name}"] for name in ("debug_nans", "debug_infs", "disable_jit"))
        if jax.process_count() > 1 or debugs:
            return
        self._take = self.traced().lower().compile()

    def calls(self, first_step: int) -> Generator[StepsCall, None, None]:
        """The data of the calls from ``first_step`` on, to be closed; each process reads the rows of its devices.

        Streamed examples are read ahead and put on the devices while they compute. Batches do not depend on the
        placement or the number of processes.
        """
        dataset, seed = self.experiment.dataset, int(self.experiment.hyperparameters[SEED])
        size = self.experiment.config.train.batch_size
        if dataset.placement != "stream":
            return calls(dataset, [seed], size, first_step, self.call_length)
        rows = sharding.local_rows(self.mesh, size)
        batches = train_stream(dataset.train, seed, size, start_step=first_step, rows=rows)
        put = lambda batch: StepsCall(np.int32(1), sharding.put_batch(batch, rows, size, self.mesh))
        return read_ahead(dataset, map(put, batches))

    def evaluate(self, state: TrainState, preempted: Callable[[], bool] = lambda: False) -> Means:
        """The metrics of ``state`` over the test split; raises `Preempted` between two batches once ``preempted``.

        The size of a batch is rounded up to a multiple of the mesh's parts of a batch. An incomplete batch is copied to
        every device.
        """
        dataset, masked = self.experiment.dataset, self.experiment.task.masked
        parts = sharding.batch_shards(self.mesh)
        size = parts * math.ceil(min(self.experiment.config.train.eval_batch_size, len(dataset.test)) / parts)
        rows = sharding.local_rows(self.mesh, size)
        whole = math.inf if masked else len(dataset.test) // size

        def put(i: int, batch: HostBatch) -> Batch:
            if preempted():
                raise Preempted("preempted during an evaluation; rerun the same command to resume.")
            if i < whole:
                return sharding.put_batch(batch, rows, size, self.mesh)
            return sharding.put_everywhere(batch, self.mesh)

        batches = itertools.starmap(put, enumerate(host_test_batches(dataset, size, rows, masked=masked)))
        with contextlib.closing(read_ahead(dataset, batches)) as ahead:
            return self._evaluated(state, None, ahead)

    def _take_steps(self, state: TrainState, values: None, call: StepsCall, data: Batch | None) -> TrainState:
        step = functools.partial(self._step, data)
        alone = lambda function: functools.partial(function, {})
        with sharding.activations_on(self.mesh):
            return take_steps(self.experiment, self.call_length, step, alone, state, call)

    def _step(self, data: Batch | None, state: TrainState, examples: Any) -> Stepped:
        batch = examples
        if data is not None:
            split = functools.partial(jax.lax.with_sharding_constraint, shardings=sharding.batch_sharding(self.mesh))
            batch = jax.tree.map(split, batch_of(self.experiment.dataset, data, split(examples[0])))
        key = batch_key(int(self.experiment.hyperparameters[SEED]), state.step)
        return self._one_step(state, self.experiment.prepare(key, batch))

    def _evaluate_batch(self, state: TrainState, values: None, batch: Batch) -> Means:
        with sharding.activations_on(self.mesh):
            return self._evaluate_one(state, batch)
