"""The compiled programs of one run, sharded over a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from depthmup_flax.engine.device_batches import batch_of
from depthmup_flax.engine.experiment import Experiment
from depthmup_flax.engine.multi_step import (
    Call,
    CallLength,
    Periods,
    abstract_examples,
    most_steps,
    take_steps,
    train_step_of,
)
from depthmup_flax.engine.step import EvalMetrics, TrainState, evaluate, make_eval_step
from depthmup_flax.parallel import sharding
from depthmup_flax.process.compiler_options import drawing_options
from depthmup_flax.util.types import ArrayTree, Batch


class ShardedProgram:
    """Initializes, trains and evaluates one run. Programs are compiled at their first use; `compile` compiles `take`.

    ``data`` is from `depthmup_flax.engine.device_batches.put_train_data`. `traced` needs no more than shapes of
    them, and a mesh of devices that may be absent.
    """

    def __init__(self, experiment: Experiment, mesh: Mesh, data: Batch | None) -> None:
        train, eval_every = experiment.config.train, experiment.config.train.eval_every or experiment.epoch_steps
        self.periods = Periods(experiment.total_steps, train.log_every, eval_every, train.checkpoint_every)
        self.call_length = CallLength(most_steps(experiment, mesh), self.periods)
        self._experiment, self._mesh = experiment, mesh
        shapes = experiment.state_shapes()
        self._shardings = sharding.state_shardings(shapes, experiment.axes, mesh)
        self.abstract_state: TrainState = jax.tree.map(lambda x, s: x.update(sharding=s), shapes, self._shardings)
        self._data = data
        prepare = functools.partial(experiment.dataset.prepare, experiment.config.data.augment)
        seed = experiment.config.seed
        self._train_step = train_step_of(experiment, experiment.model, experiment.optimizer, prepare, seed)
        self._eval_step = make_eval_step(experiment.model, prepare=prepare)
        self._take: Callable[[TrainState, Call, Batch | None], TrainState] = self._jitted(self._take_steps)
        self._evaluate = jax.jit(self._evaluate_batch, out_shardings=sharding.replicated(mesh))

    def initial_state(self) -> TrainState:
        """A fresh state."""
        options = drawing_options(sharding.platform(self._mesh))
        return jax.jit(self._experiment.init_state, out_shardings=self._shardings, compiler_options=options)()

    def take(self, state: TrainState, call: Call) -> TrainState:
        """The state after the steps of ``call``; ``state`` is donated."""
        return self._take(state, call, self._data)

    def compile(self, call: Call) -> None:
        """Compiles `take` for calls such as ``call``.

        Several processes compile at the first call instead, and so do JAX's debugging modes, which run a compiled step
        again, operation by operation.
        """
        debugs = any(jax.config.values[f"jax_{name}"] for name in ("debug_nans", "debug_infs", "disable_jit"))
        if jax.process_count() > 1 or debugs:
            return
        arguments = self.abstract_state, call, self._data
        self._take = self._jitted(self._take_steps).trace(*arguments).lower().compile()

    def traced(self) -> jax.stages.Traced:
        """The program of `take`, for the devices of the mesh."""
        return self._jitted(self._take_steps).trace(*self._abstract_arguments())

    def _jitted(self, step: Callable[..., TrainState]) -> jax.stages.Wrapped:
        return jax.jit(step, donate_argnums=0, out_shardings=self._shardings)

    def _abstract_arguments(self) -> tuple[TrainState, Call, Batch | None]:
        dataset, size, most = self._experiment.dataset, self._experiment.config.train.batch_size, self.call_length.most
        place = sharding.replicated(self._mesh)
        leading: tuple[int, ...] = (size,)
        if dataset.placement == "stream":
            place = sharding.batch_sharding(self._mesh)
        else:
            leading = (*[most] * (most > 1), 1, size)
        examples = jax.tree.map(lambda x: x.update(sharding=place), abstract_examples(dataset, leading))
        count = jax.ShapeDtypeStruct((), np.int32, sharding=sharding.replicated(self._mesh))
        return self.abstract_state, Call(count, examples), self._data  # type: ignore[arg-type]

    def evaluate(self, state: TrainState, batches: Iterator[Batch]) -> EvalMetrics:
        """Loss and accuracy of ``state`` over ``batches``."""
        return evaluate(functools.partial(self._evaluate, state.params, state.batch_stats), batches)

    def _take_steps(self, state: TrainState, call: Call, data: Batch | None) -> TrainState:
        def step(state: TrainState, examples: Any) -> TrainState:
            if data is None:
                return self._train_step(state, examples)
            split = functools.partial(jax.lax.with_sharding_constraint, shardings=sharding.batch_sharding(self._mesh))
            return self._train_step(
                state, jax.tree.map(split, batch_of(self._experiment.dataset, data, split(examples[0])))
            )

        with sharding.activations_on(self._mesh, self._experiment.config.mesh.gradient_dtype):
            return take_steps(step, state, call, self.call_length.most)

    def _evaluate_batch(self, params: ArrayTree, batch_stats: ArrayTree, batch: Batch) -> EvalMetrics:
        with sharding.activations_on(self._mesh):
            return self._eval_step(params, batch_stats, batch)
