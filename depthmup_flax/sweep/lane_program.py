"""One compiled program that trains many runs at a time, in lanes: vectorized on each device, spread over devices.

Runs share it if they differ only in the seed and in the fields of `CONTINUOUS`. ``per_device`` lanes
are mapped by ``vmap``; devices are the mesh axis ``sweep`` and do not communicate. With one lane per device the program
is the plain training step.

Axes in names: ``K`` lanes of all devices, ``V`` lanes of a device, ``U`` distinct seeds on a device, ``D`` devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import clu.metrics
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from depthmup_flax.config.fields import get_field
from depthmup_flax.data import eval_batches
from depthmup_flax.engine.device_batches import Waiting, batch_of, calls, read_ahead_if_streamed
from depthmup_flax.engine.experiment import Experiment, traced
from depthmup_flax.engine.multi_step import (
    Call,
    CallLength,
    Periods,
    abstract_examples,
    most_steps,
    take_steps,
    train_step_of,
)
from depthmup_flax.engine.step import TrainState, evaluate, init_state, make_eval_step
from depthmup_flax.parallel import sharding
from depthmup_flax.process.compiler_options import drawing_options
from depthmup_flax.records.table import CONTINUOUS, SEED
from depthmup_flax.sweep.grid import Run
from depthmup_flax.sweep.lane_layout import cohorts, lay_out
from depthmup_flax.util.types import ArrayTree, Batch

T = TypeVar("T")

SWEEP_AXIS = "sweep"

# Calls in a measurement of speed, and the seconds after which it ends.
WARM_CALLS, TIMED_CALLS, TIMED_S = 2, 20, 0.3


def sweep_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """One axis, ``sweep``, over ``devices``, by default all; in their order, as they do not communicate."""
    return Mesh(np.array(devices or jax.devices()), (SWEEP_AXIS,), axis_types=(AxisType.Auto,))


def varying_fields(runs: Sequence[Run]) -> list[str]:
    """The continuous fields in which runs differ."""
    paths = [path for path in runs[0].point if path == SEED or path in CONTINUOUS]
    return [path for path in paths if len({run.point[path] for run in runs}) > 1]


def _fields_of_lanes(config: ConfigDict, runs: Sequence[Run]) -> list[str]:
    """The seed, and the continuous fields that ``config`` does not have right for all runs.

    Runs of a shard may agree in a value that is not that of ``config``, which is of the first run of the whole group.
    """
    paths = [path for path in runs[0].point if path in CONTINUOUS]
    return sorted({SEED, *(path for path in paths if any(run.point[path] != get_field(config, path) for run in runs))})


@struct.dataclass
class LaneValues:
    """What lanes differ in."""

    fields_K: Mapping[str, jax.typing.ArrayLike]  # continuous field, or the seed -> value of each lane
    seed_place_K: jax.typing.ArrayLike  # index of a lane's seed among its device's
    seeds_DU: jax.typing.ArrayLike  # the seeds of each device, device after device


@dataclasses.dataclass(frozen=True)
class Lanes:
    """Runs in the lanes of a program."""

    runs_K: list[Run]
    lane_of: dict[str, int]  # hash of a run -> its lane; other lanes repeat one
    values: LaneValues


class Program:
    """Trains up to ``capacity`` runs of one structural group at a time, fewer if ``one_seed`` leaves lanes empty.

    Args:
      experiment: of any of the group's runs.
      group: all of these runs.
      mesh: from `sweep_mesh`.
      per_device: lanes on each device.
      one_seed: the lanes of a device have the same seed and so the same examples; see `lay_out`.
      data: from `depthmup_flax.engine.device_batches.put_train_data`.

    Without devices, a mesh of a topology and shapes of the data give a program that is compiled and cannot run.

    Attributes:
      traced: the program of `take`.
      compiled: the same, compiled.
    """

    def __init__(
        self, experiment: Experiment, group: list[Run], mesh: Mesh, per_device: int, one_seed: bool, data: Batch | None
    ) -> None:
        self.experiment, self.per_device, self.one_seed, self.mesh = experiment, per_device, one_seed, mesh
        self.capacity = per_device * mesh.size
        self.periods = Periods(experiment.total_steps, experiment.config.train.log_every)
        self.call_length = CallLength(most_steps(experiment, mesh), self.periods)
        self._seeds_per_device = 1 if one_seed else min(per_device, len({run.config.seed for run in group}))
        self._fields = _fields_of_lanes(experiment.config, group)
        self._data = data
        self._split, self._everywhere = NamedSharding(mesh, P(SWEEP_AXIS)), NamedSharding(mesh, P())
        # Axes of a call's examples: S if there are several steps, U of all devices, B, ...
        self._examples_spec = P(SWEEP_AXIS) if self.call_length.most == 1 else P(None, SWEEP_AXIS)
        values = self._laid_out(group[:1]).values
        self._abstract_values: LaneValues = self._abstract(values, P(SWEEP_AXIS))
        started = time.perf_counter()
        options = drawing_options(sharding.platform(mesh))
        self._init = jax.jit(self._sharded(self._init_lanes, P(SWEEP_AXIS)), compiler_options=options)
        self._evaluate = jax.jit(self._sharded(self._evaluate_lanes, P(SWEEP_AXIS), P(SWEEP_AXIS), P()))
        self.traced = self._traced_steps()
        self.compiled = self.traced.lower().compile()
        self.compile_s = time.perf_counter() - started

    @property
    def bytes_per_device(self) -> int:
        """Memory of a training step on one device, by the compiler's account."""
        memory = self.compiled.memory_analysis()
        size = lambda kind: getattr(memory, f"{kind}_size_in_bytes", 0)  # no account: None
        return size("temp") + size("argument") + size("output") - size("alias")  # a donated state counts once

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """Shapes, types and shardings of the lanes' training state."""
        return self._abstract(jax.eval_shape(self._init, self._abstract_values), P(SWEEP_AXIS))

    def place(self, runs: Sequence[Run]) -> Lanes:
        """Lanes for ``runs``, at most `capacity` (`depthmup_flax.sweep.lane_layout`)."""
        lanes = self._laid_out(runs)
        return dataclasses.replace(lanes, values=jax.device_put(lanes.values, self._split))

    def init(self, lanes: Lanes) -> TrainState:
        """Fresh networks."""
        return self._init(lanes.values)

    def calls(self, lanes: Lanes, first_step: int) -> Generator[Call, None, None]:
        """The data of the calls from ``first_step`` on; to be closed."""
        seeds, size = np.asarray(lanes.values.seeds_DU).tolist(), self.experiment.config.train.batch_size
        on_host = calls(self.experiment.dataset, seeds, size, first_step, self.call_length)
        place = NamedSharding(self.mesh, self._examples_spec)
        return self._watched(Call(call.count, jax.device_put(call.examples, place)) for call in on_host)

    def take(self, state: TrainState, lanes: Lanes, call: Call) -> TrainState:
        """The state after the steps of ``call``; ``state`` is donated."""
        return self.compiled(state, lanes.values, call, self._data)

    def select(self, state: TrainState, lanes: Sequence[int]) -> TrainState:
        """The given lanes of a larger program's state, as this program's."""
        take = lambda x: x[np.array(lanes)]
        return jax.jit(lambda state: jax.tree.map(take, state), out_shardings=self._split)(state)

    def test(self, state: TrainState, lanes: Lanes) -> list[dict[str, float]]:
        """``test_loss`` and ``test_accuracy`` of every lane."""
        train, test = self.experiment.config.train, self.experiment.dataset.test
        # Activations of all lanes are alive at once: no more of them than a training step has.
        size = train.eval_batch_size if self.per_device == 1 else min(train.eval_batch_size, 2 * train.batch_size)
        on_devices = (jax.device_put(batch, self._everywhere) for batch in eval_batches(test, min(size, len(test))))
        with contextlib.closing(self._watched(on_devices)) as batches:
            metrics = jax.device_get(evaluate(functools.partial(self._evaluate, state, lanes.values), batches))
        values = (lane.compute() for lane in unstacked(metrics))
        return [{"test_loss": lane["loss"], "test_accuracy": lane["accuracy"]} for lane in values]

    def seconds_per_run_step(self, runs: Sequence[Run]) -> float:
        """The measured time of a training step divided by the number of lanes."""
        lanes = self.place(cohorts(runs, self.per_device, self.mesh.size)[0])
        # Zeros take as long as networks, whose initialization would have to be compiled first.
        state = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), self.abstract_state)
        times: list[float] = []
        with contextlib.closing(self.calls(lanes, 0)) as calls:
            for i, call in zip(range(WARM_CALLS + TIMED_CALLS), calls, strict=False):
                started = time.perf_counter()
                state = jax.block_until_ready(self.take(state, lanes, call))
                seconds = time.perf_counter() - started
                times.append(seconds / call.count)
                if i == WARM_CALLS - 1:
                    self.call_length.adapt(call.count / seconds)
                    ends = time.perf_counter() + TIMED_S
                elif i >= WARM_CALLS and time.perf_counter() > ends:
                    break
        return float(np.median(times[WARM_CALLS:])) / self.capacity

    def _laid_out(self, runs: Sequence[Run]) -> Lanes:
        """`place` on the host."""
        runs_K, lane_of = lay_out(runs, self.per_device, self.mesh.size, self.one_seed)
        seed_place_K: list[int] = []
        seeds_DU: list[int] = []
        for start in range(0, self.capacity, self.per_device):
            here = [run.config.seed for run in runs_K[start : start + self.per_device]]
            distinct = list(dict.fromkeys(here))
            seed_place_K += [distinct.index(seed) for seed in here]
            seeds_DU += [*distinct, *[distinct[0]] * (self._seeds_per_device - len(distinct))]
        fields = {path: [get_field(run.config, path) for run in runs_K] for path in self._fields}
        values = LaneValues(
            {path: np.array(values_K, _dtype(path)) for path, values_K in fields.items()},
            np.array(seed_place_K, np.int32),
            np.array(seeds_DU, np.int32),
        )
        return Lanes(runs_K, lane_of, values)

    def _init_lanes(self, values_V: LaneValues) -> TrainState:
        def init(fields: dict[str, jax.Array]) -> TrainState:
            return init_state(*self._network(fields), fields[SEED], self.experiment.dataset.input_spec)

        return _mapped(init, self.per_device)(values_V.fields_K)

    def _take_steps(self, state_V: TrainState, values_V: LaneValues, call: Call, data: Batch | None) -> TrainState:
        step = functools.partial(self._step_lanes, values_V, data)
        take = lambda state: take_steps(step, state, call, self.call_length.most)
        # A single lane has no axis between the steps of a call: XLA:CPU would compute its moments twice to add one.
        return take(state_V) if self.per_device > 1 else _with_axis(take(_first(state_V)))

    def _step_lanes(self, values_V: LaneValues, data: Batch | None, state: TrainState, examples_U: Any) -> TrainState:
        """``state``: of all lanes, or of the only one, without an axis of lanes."""
        experiment, several = self.experiment, self.per_device > 1
        fields: Any = values_V.fields_K if several else _first(values_V.fields_K)
        step = state.step[0] if several else state.step  # the same in all lanes

        def prepare(seed: jax.Array, examples: Any) -> tuple[jax.Array, jax.Array]:
            key = jax.random.fold_in(jax.random.key(seed), step)
            batch = batch_of(experiment.dataset, data, examples)
            return experiment.dataset.prepare(experiment.config.data.augment, key, batch)

        def train(state: TrainState, fields: dict[str, jax.Array], batch: Any) -> TrainState:
            already_prepared = lambda key, batch: batch  # lanes of one seed share a prepared batch
            return train_step_of(experiment, *self._network(fields), already_prepared, fields[SEED])(state, batch)

        batch_U = _mapped(prepare, self._seeds_per_device)(values_V.seeds_DU, examples_U)
        if self._seeds_per_device == 1:
            on_batch = functools.partial(train, batch=_first(batch_U))
            return (jax.vmap(on_batch) if several else on_batch)(state, fields)
        # A copy for each lane: mapping twice, over seeds and over the lanes of each, is slower.
        batch_V = jax.tree.map(lambda x: x[values_V.seed_place_K], batch_U)
        return jax.vmap(train)(state, fields, batch_V)

    def _evaluate_lanes(self, state_V: TrainState, values_V: LaneValues, batch: Batch) -> clu.metrics.Collection:
        prepare = functools.partial(self.experiment.dataset.prepare, self.experiment.config.data.augment)

        def eval_lane(state: TrainState, fields: dict[str, jax.Array]) -> clu.metrics.Collection:
            return make_eval_step(self._network(fields)[0], prepare=prepare)(state.params, state.batch_stats, batch)

        return _mapped(eval_lane, self.per_device)(state_V, values_V.fields_K)

    def _network(self, fields: dict[str, jax.Array]) -> tuple[nn.Module, optax.GradientTransformation]:
        model, optimizer = traced(self.experiment, {path: value for path, value in fields.items() if path != SEED})
        return model, row_major(optimizer) if sharding.platform(self.mesh) == "tpu" else optimizer

    def _sharded(self, function: Callable[..., T], *specs: Any) -> Callable[..., T]:
        """``function`` on each device's part of its arguments, which are split as ``specs`` say."""
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=P(SWEEP_AXIS), check_vma=False)

    def _traced_steps(self) -> jax.stages.Traced:
        train, dataset, most = self.experiment.config.train, self.experiment.dataset, self.call_length.most
        leading = (*[most] * (most > 1), self.mesh.size * self._seeds_per_device, train.batch_size)
        specs = P(SWEEP_AXIS), P(SWEEP_AXIS), Call(P(), self._examples_spec), P()  # type: ignore[arg-type]
        steps = jax.jit(self._sharded(self._take_steps, *specs), donate_argnums=0)
        call = Call(
            self._abstract(np.int32(0), P()), self._abstract(abstract_examples(dataset, leading), self._examples_spec)
        )
        return steps.trace(self.abstract_state, self._abstract_values, call, self._data)

    def _abstract(self, tree: ArrayTree, spec: P) -> Any:
        place = NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=place), tree)

    def _watched(self, items: Generator[T, None, None]) -> Generator[T, None, None]:
        waiting = Waiting(self.experiment.config.train.stall_timeout_s)
        return read_ahead_if_streamed(self.experiment.dataset, items, waiting)


def unstacked(tree: ArrayTree) -> list[Any]:
    """The tree of each lane, from arrays with a leading axis of lanes."""
    return [jax.tree.map(lambda x, lane=lane: x[lane], tree) for lane in range(len(jax.tree.leaves(tree)[0]))]


def row_major(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """``optimizer`` for gradients whose layout is that of its state.

    Otherwise XLA:TPU computes the gradient of a first layer transposed, and in every step copies the layer's parameters
    and moments into that layout and back: 40 % of the step of 64 lanes of ResMLP, by the compiler's estimate.
    """

    def update(grads: ArrayTree, state: ArrayTree, params: ArrayTree = None) -> tuple[ArrayTree, ArrayTree]:
        return optimizer.update(
            jax.tree.map(lambda x: with_layout_constraint(x, Layout(tuple(range(x.ndim)))), grads), state, params
        )

    return optax.GradientTransformation(optimizer.init, update)


def _dtype(path: str) -> Any:
    return np.int32 if path in (SEED, "optimizer.warmup_steps") else jnp.result_type(float)


def _mapped(function: Callable[..., Any], size: int) -> Callable[..., Any]:
    """``vmap`` over a leading axis of length ``size``; for 1 the same without it, as it makes convolutions grouped."""
    return jax.vmap(function) if size > 1 else lambda *trees: _with_axis(function(*_first(trees)))


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[0], tree)


def _with_axis(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[None], tree)
