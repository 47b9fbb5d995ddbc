"""The programs of one run, sharded over a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from depthmup_flax.devices.parallel import sharding
from depthmup_flax.storage.records.table import SEED
from depthmup_flax.trainer.engine.device_batches import batch_of
from depthmup_flax.trainer.engine.means import Means
from depthmup_flax.trainer.engine.multi_step import Call
from depthmup_flax.trainer.engine.program import Program
from depthmup_flax.trainer.engine.step import Stepped, TrainState, batch_key
from depthmup_flax.trainer.engine.workload import Workload
from depthmup_flax.util.types import Batch


class ShardedProgram(Program):
    """Trains one run. Programs are compiled at their first use; `compile` compiles `take`."""

    _abstract_values = None  # the hyperparameters are constants of the program

    def __init__(self, workload: Workload, mesh: Mesh, data: Batch | None) -> None:
        super().__init__(workload, mesh, data, workload.periods, measures=workload.measures)
        self._shardings = sharding.state_shardings(workload.shapes, workload.axes, mesh)
        self.abstract_state = jax.tree.map(lambda x, s: x.update(sharding=s), workload.shapes, self._shardings)
        streamed = workload.dataset.placement == "stream"
        self._leading = (workload.batch_size,) if streamed else (1, workload.batch_size)
        self._split = P(sharding.BATCH_AXES) if streamed else P()
        self._one_step, self._evaluate_one = workload.step({}), workload.evaluate({})
        self._steps = jax.jit(self._take_steps, donate_argnums=0, out_shardings=self._shardings)
        self._take: Callable[..., TrainState] = self._steps
        measured = self._shardings, sharding.replicated(mesh)
        self._take_measured: Any = jax.jit(self._measured_step, donate_argnums=0, out_shardings=measured)
        self._evaluate = jax.jit(self._evaluate_batch, out_shardings=sharding.replicated(mesh))

    def initial_state(self) -> TrainState:
        """A fresh state."""
        init = functools.partial(self.workload.init, {})
        return jax.jit(init, out_shardings=self._shardings, compiler_options=self._drawing)()

    def take(self, state: TrainState, call: Call) -> TrainState:
        """The state after the steps of ``call``; ``state`` is donated."""
        return self._take(state, None, call, self._data)

    def take_measured(self, state: TrainState, call: Call) -> Stepped:
        """`take` for a call of one step, and the metrics of the step."""
        return self._take_measured(state, None, call, self._data)

    def compile(self) -> None:
        """Compiles `take`, and `take_measured` where the workload measures.

        Several processes compile at the first call instead, and so do JAX's debugging modes, which run a compiled step
        again, operation by operation.
        """
        debugs = any(jax.config.values[f"jax_{name}"] for name in ("debug_nans", "debug_infs", "disable_jit"))
        if jax.process_count() > 1 or debugs:
            return
        self._take = self.traced().lower().compile()
        if self.workload.measures:
            self._take_measured = self._take_measured.trace(*self._arguments()).lower().compile()

    def evaluate(self, state: TrainState, batches: Iterator[Batch]) -> Means:
        """The metrics of ``state`` over ``batches``."""
        return self._evaluated(state, None, batches)

    def _take_steps(self, state: TrainState, values: None, call: Call, data: Batch | None) -> TrainState:
        with sharding.activations_on(self.mesh, self.workload.gradient_dtype):
            return super()._take_steps(state, values, call, data)

    def _step(self, values: None, data: Batch | None, state: TrainState, examples: Any) -> Stepped:
        batch = examples
        if data is not None:
            split = functools.partial(jax.lax.with_sharding_constraint, shardings=sharding.batch_sharding(self.mesh))
            batch = jax.tree.map(split, batch_of(self.workload.dataset, data, split(examples[0])))
        key = batch_key(int(self.workload.hyperparameters[SEED]), state.step)
        return self._one_step(state, self.workload.prepare(key, batch))

    def _measured_step(self, state: TrainState, values: None, call: Call, data: Batch | None) -> Stepped:
        examples = call.examples if self.call_length.most == 1 else call.examples[0]
        with sharding.activations_on(self.mesh, self.workload.gradient_dtype):
            return self._step(values, data, state, examples)

    def _evaluate_batch(self, state: TrainState, values: None, batch: Batch) -> Means:
        with sharding.activations_on(self.mesh):
            return self._evaluate_one(state, batch)
