"""One compiled program that trains many runs at a time: lanes, vectorized on each device and spread over devices.

Runs that differ in `depthmup_flax.records.CONTINUOUS` fields and the seed alone share it. ``per_device`` lanes
are mapped by ``vmap``; devices are the mesh axis ``sweep`` and do not communicate. With one lane per device the program
is the plain training step, so that running one after another is a special case and not another code path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from depthmup_flax.data import Dataset, batch_indices, eval_batches, train_batch
from depthmup_flax.records import COMPLETED, CONTINUOUS, DIVERGED, SEED
from depthmup_flax.sweep.grid import Run
from depthmup_flax.sweep.lane_layout import chunks, lay_out
from depthmup_flax.training.config import get_field
from depthmup_flax.training.device_batches import Closing, ahead_if_streamed
from depthmup_flax.training.experiment import Experiment, traced_parts
from depthmup_flax.training.step import TrainState, init_state, make_eval_step, make_train_step

T = TypeVar("T")

SWEEP_AXIS = "sweep"

_WARM_STEPS, _TIMED_STEPS, _TIMED_S = 2, 20, 0.3  # calls of the program in a measurement, and when to end it
# Steps in one call of the program: as many as this, within so many seconds, after which signals are looked at.
_MOST_STEPS, _CALL_S = 16, 0.1


def sweep_mesh() -> Mesh:
    """One axis, ``sweep``, over all devices."""
    return jax.make_mesh((jax.device_count(),), (SWEEP_AXIS,), axis_types=(AxisType.Auto,))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one run; fields as in `depthmup_flax.records.Record`."""

    status: str
    steps: int
    train_loss: float | None
    train_loss_avg: float | None
    train_loss_slices: list[float | None]
    test_loss: float | None
    test_accuracy: float | None
    diverged_at_step: int | None


@dataclasses.dataclass(frozen=True)
class _Placed:
    """Runs in their lanes, as arrays that are sharded over devices.

    ``K = devices * per_device`` lanes, ``U`` distinct seeds on each device.
    """

    runs_K: list[Run]  # of every lane
    taken: list[int]  # the lanes that are no repetitions
    values_K: dict[str, jax.Array]  # continuous field -> value; the seed is one of them
    which_K: jax.Array  # lane -> the place of its seed among its device's
    seeds_DU: jax.Array
    seeds: list[int]  # the same, on the host

    def __iter__(self) -> Iterator[tuple[int, Run]]:
        """Lanes and their runs, without repetitions."""
        return ((lane, self.runs_K[lane]) for lane in self.taken)


class Program:
    """Trains up to ``capacity`` runs of one structural group at a time, fewer if `one_seed` leaves lanes empty.

    Attributes:
      steps_in_call: how many steps it is asked for at a time, if it can take several; changes no number.

    Args:
      experiment: of any of the group's runs.
      fields: the continuous fields in which the runs differ; the seed always counts.
      mesh: from `sweep_mesh`.
      per_device: lanes on each device.
      one_seed: the lanes of a device have the same seed and so the same examples; see `lay_out`.
      distinct_seeds: how many different seeds the group has.
      data: the training examples on every device, or ``None`` for a streamed set.
    """

    def __init__(
        self,
        experiment: Experiment,
        fields: Sequence[str],
        mesh: Mesh,
        per_device: int,
        one_seed: bool,
        distinct_seeds: int,
        data: Any,
    ) -> None:
        self.experiment, self.per_device, self.one_seed, self.mesh = experiment, per_device, one_seed, mesh
        self._seeds_per_device = 1 if one_seed else min(per_device, distinct_seeds)
        self.capacity = per_device * mesh.size
        self._fields = sorted({*fields, "seed"})
        self._data = data
        self._split, self._everywhere = NamedSharding(mesh, P(SWEEP_AXIS)), NamedSharding(mesh, P())
        self.slice_steps = experiment.config.train.log_every
        started = time.perf_counter()
        self._init = jax.jit(self._sharded(self._init_lanes, 1))
        self._evaluate = jax.jit(self._sharded(self._evaluate_lanes, 2, replicated=1))
        self._most_steps, self._steps = self._compiled_steps()
        self.steps_in_call = 1  # until it is measured
        self.compile_s = time.perf_counter() - started

    @property
    def bytes_per_device(self) -> int:
        """Memory of a training step on one device, as the compiler states it."""
        found = self._steps.memory_analysis()
        if found is None:
            return 0
        return found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes

    def seconds_per_run_step(self, runs: Sequence[Run]) -> float:
        """Measured: time of a training step divided by the number of lanes."""
        placed = self._place(chunks(runs, self.per_device, self.mesh.size)[0])
        # Zeros take as long as networks, which would have to be compiled first.
        state = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), self.abstract_state)
        times: list[float] = []
        spent = 0.0
        with contextlib.closing(self._batches(placed)) as batches:
            for call, (count, *batch) in zip(range(_WARM_STEPS + _TIMED_STEPS), batches, strict=False):
                started = time.perf_counter()
                state = self.call(state, placed, batch)
                jax.block_until_ready(state)
                took = time.perf_counter() - started
                if call == _WARM_STEPS - 1:
                    self.adapt_calls(count, took)
                if call >= _WARM_STEPS:
                    times.append(took / count)
                    spent += took
                if spent > _TIMED_S:
                    break
        return float(np.median(times)) / self.capacity

    def call(self, state: TrainState, placed: _Placed, batch: Sequence[Any]) -> TrainState:
        """The steps of ``batch``, which `_batches` has made, without their count; ``state`` is given away."""
        return self._steps(state, placed.values_K, placed.which_K, placed.seeds_DU, *batch)

    def adapt_calls(self, steps: int, seconds: float) -> None:
        """Makes calls as long as they may be, now that so many steps took so long."""
        self.steps_in_call = max(1, int(steps * _CALL_S / seconds))

    def begin(self, runs: Sequence[Run]) -> Chunk:
        """Fresh networks for ``runs``, which have lanes of their own (`depthmup_flax.sweep.lane_layout`)."""
        placed = self._place(runs)
        return Chunk(list(runs), self, placed, self._init(placed.values_K), 0, {run.hash: [] for run in runs}, {})

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """Shapes, types and places of the lanes' training state."""
        state: Any = jax.eval_shape(self._init, self._values_shapes())
        return jax.tree.map(lambda x: self._abstract(x.shape, x.dtype, sharding=self._split), state)

    def train(
        self,
        runs: Sequence[Run],
        shrink: Callable[[list[Run]], Program | None] = lambda alive: None,
        after_step: Callable[[Chunk], None] = lambda chunk: None,
    ) -> list[Outcome]:
        """`train_chunk` from the beginning."""
        return train_chunk(self.begin(runs), shrink, after_step)

    # -- the program --------------------------------------------------------------------------------------------

    def _init_lanes(self, values_V: dict[str, jax.Array]) -> TrainState:
        def init(values: dict[str, jax.Array]) -> TrainState:
            model, optimizer = self._parts(values)
            return init_state(model, optimizer, values["seed"], self.experiment.dataset.input_spec)

        return _mapped(init, self.per_device)(values_V)

    def _take_steps(
        self,
        state_V: TrainState,
        values_V: dict[str, jax.Array],
        which_V: jax.Array,
        seeds_U: jax.Array,
        examples_UxSxB: Any,
        count: jax.Array,
        first: jax.Array,
        data: Any,
    ) -> TrainState:
        """``count <= S`` steps from ``first`` on; the host has less to do than if they were single."""

        def take(i: jax.Array | int, state_V: TrainState) -> TrainState:
            examples_UxB = jax.tree.map(lambda x: x[:, i], examples_UxSxB)
            return self._step_lanes(state_V, values_V, which_V, seeds_U, examples_UxB, first + i, data)

        most = jax.tree.leaves(examples_UxSxB)[0].shape[1]
        return take(0, state_V) if most == 1 else jax.lax.fori_loop(0, count, take, state_V)

    def _step_lanes(
        self,
        state_V: TrainState,
        values_V: dict[str, jax.Array],
        which_V: jax.Array,
        seeds_U: jax.Array,
        examples_UxB: Any,
        step: jax.Array,
        data: Any,
    ) -> TrainState:
        """``examples`` are rows of ``data``, or the examples themselves where ``data`` is ``None``."""
        experiment, config = self.experiment, self.experiment.config

        def prepare(seed: jax.Array, examples_B: Any) -> tuple[jax.Array, jax.Array]:
            batch = examples_B if data is None else jax.tree.map(lambda a: a[examples_B], data)
            key = jax.random.fold_in(jax.random.key(seed), step)
            return experiment.dataset.prepare(config.data.augment, key, batch)

        def train(state: TrainState, values: dict[str, jax.Array], batch: Any) -> TrainState:
            model, optimizer = self._parts(values)
            average_steps = config.train.average_steps or experiment.epoch_steps
            train_step = make_train_step(
                model,
                optimizer,
                prepare=_prepared,
                seed=values["seed"],
                log_every=config.train.log_every,
                average_from=max(0, experiment.total_steps - average_steps),
                accumulate=config.train.accumulate,
            )
            return train_step(state, batch)

        batch_U = _mapped(prepare, self._seeds_per_device)(seeds_U, examples_UxB)
        if self._seeds_per_device == 1:
            batch = jax.tree.map(lambda x: x[0], batch_U)
            return _mapped(train, self.per_device, in_axes=(0, 0, None))(state_V, values_V, batch)
        # A copy for each lane: mapping twice, over seeds and over the lanes of each, is slower.
        batch_V = jax.tree.map(lambda x: x[which_V], batch_U)
        return _mapped(train, self.per_device)(state_V, values_V, batch_V)

    def _evaluate_lanes(self, state_V: TrainState, values_V: dict[str, jax.Array], batch: Any) -> Any:
        prepare = functools.partial(self.experiment.dataset.prepare, self.experiment.config.data.augment)

        def evaluate(state: TrainState, values: dict[str, jax.Array]) -> Any:
            model, _ = self._parts(values)
            return make_eval_step(model, prepare=prepare)(state.params, state.batch_stats, batch)

        return _mapped(evaluate, self.per_device)(state_V, values_V)

    def _parts(self, values: dict[str, jax.Array]) -> Any:
        return traced_parts(self.experiment, {path: value for path, value in values.items() if path != "seed"})

    def _sharded(self, function: Callable[..., Any], split: int, replicated: int = 0) -> Callable[..., Any]:
        """The first ``split`` arguments and the result are split over devices, the others are on each."""
        specs = (P(SWEEP_AXIS),) * split + (P(),) * replicated
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=P(SWEEP_AXIS), check_vma=False)

    def _compiled_steps(self) -> tuple[int, Any]:
        """The most steps in a call, and the program of a call."""
        streams, several = self._data is None, jax.process_count() > 1  # which agree on the step after which to leave
        # In a loop XLA:CPU runs some convolutions ten times slower. Other devices were not measured.
        has_windows = any(x.ndim > 4 for x in jax.tree.leaves(self.abstract_state.params))  # lanes, layers, in, out
        loops = jax.default_backend() == "cpu" and not (streams or several or has_windows)
        most = _MOST_STEPS if loops else 1
        return most, self._lowered_steps(most).compile()

    def _lowered_steps(self, most: int) -> Any:
        config, dataset = self.experiment.config, self.experiment.dataset
        split = functools.partial(self._abstract, sharding=self._split)
        number = self._abstract((), np.int32, sharding=self._everywhere)
        leading = (self.mesh.size * self._seeds_per_device, most, config.train.batch_size)
        examples: Any = split(leading, np.int32)
        if self._data is None:
            one = dataset.train.read(np.arange(1))
            examples = {k: split((*leading, *v.shape[1:]), v.dtype) for k, v in one.items()}
        steps = jax.jit(self._sharded(self._take_steps, 5, replicated=3), donate_argnums=0)
        return steps.lower(
            self.abstract_state,
            self._values_shapes(),
            split((self.capacity,), np.int32),
            split(leading[:1], np.int32),
            examples,
            number,
            number,
            jax.tree.map(lambda x: self._abstract(x.shape, x.dtype, sharding=self._everywhere), self._data),
        )

    def _values_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        return {path: self._abstract((self.capacity,), _dtype(path), sharding=self._split) for path in self._fields}

    @staticmethod
    def _abstract(shape: Sequence[int], dtype: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding)

    # -- runs in lanes ------------------------------------------------------------------------------------------

    def _place(self, runs: Sequence[Run]) -> _Placed:
        runs_K, taken = lay_out(runs, self.per_device, self.mesh.size, self.one_seed)
        fields = {path: [get_field(run.config, path) for run in runs_K] for path in self._fields}
        values = {path: np.array(values_K, _dtype(path)) for path, values_K in fields.items()}
        which, seeds = [], []
        for start in range(0, self.capacity, self.per_device):
            here = [run.config.seed for run in runs_K[start : start + self.per_device]]
            distinct = list(dict.fromkeys(here))
            which += [distinct.index(seed) for seed in here]
            seeds += [*distinct, *[distinct[0]] * (self._seeds_per_device - len(distinct))]
        put = functools.partial(jax.device_put, device=self._split)
        return _Placed(
            runs_K, taken, put(values), put(np.array(which, np.int32)), put(np.array(seeds, np.int32)), seeds
        )

    def _take(self, state: TrainState, placed: _Placed, alive: Sequence[int]) -> tuple[TrainState, _Placed]:
        """The lanes ``alive`` of a larger program, in this one."""
        lane_of = {placed.runs_K[lane].hash: lane for lane in alive}
        taken = self._place([placed.runs_K[lane] for lane in alive])
        lanes = np.array([lane_of[run.hash] for run in taken.runs_K])
        gather = jax.jit(lambda state: jax.tree.map(lambda x: x[lanes], state), out_shardings=self._split)
        return gather(state), taken

    def _batches(self, placed: _Placed, first_step: int = 0) -> Closing[tuple[Any, ...]]:
        """``(count, examples, count, step, data)`` of each call from ``first_step`` on; to be closed."""
        return self._watched(self._made_batches(placed, first_step))

    def _watched(self, batches: Generator[T, None, None]) -> Closing[T]:
        experiment = self.experiment
        return ahead_if_streamed(experiment.dataset, batches, experiment.config.train.stall_timeout_s)

    def _made_batches(self, placed: _Placed, first_step: int) -> Generator[tuple[Any, ...], None, None]:
        config, train, step = self.experiment.config, self.experiment.dataset.train, first_step
        size, total = config.train.batch_size, self.experiment.total_steps
        everywhere = functools.partial(jax.device_put, device=self._everywhere)
        while True:
            # Not beyond the end of a slice or of the run.
            left = min(self.slice_steps - step % self.slice_steps, total - step if step < total else math.inf)
            count = int(min(self.steps_in_call, self._most_steps, left))
            if self._data is None:
                read = {seed: train_batch(train, seed, step, size) for seed in set(placed.seeds)}
                examples: Any = jax.tree.map(lambda *x: np.stack(x)[:, None], *[read[seed] for seed in placed.seeds])
            else:
                examples = np.zeros((len(placed.seeds), self._most_steps, size), np.int32)
                for (place, seed), i in itertools.product(enumerate(placed.seeds), range(count)):
                    examples[place, i] = batch_indices(seed, step + i, len(train), size)
            yield (
                count,
                jax.device_put(examples, self._split),
                everywhere(np.int32(count)),
                everywhere(np.int32(step)),
                self._data,
            )
            step += count

    def _test(self, state: TrainState, placed: _Placed) -> tuple[np.ndarray, np.ndarray]:
        """Test loss and accuracy of every lane."""
        train = self.experiment.config.train
        # Activations of all lanes are alive at once: no more of them than a training step has.
        size = train.eval_batch_size if self.per_device == 1 else min(train.eval_batch_size, 2 * train.batch_size)
        test = self.experiment.dataset.test
        batches = (jax.device_put(batch, self._everywhere) for batch in eval_batches(test, min(size, len(test))))
        with contextlib.closing(self._watched(batches)) as watched:
            sums = (self._evaluate(state, placed.values_K, batch) for batch in watched)
            total = jax.device_get(functools.reduce(lambda total, new: total.merge(new), sums))
        lanes = [jax.tree.map(lambda x, lane=lane: x[lane], total).compute() for lane in range(self.capacity)]
        return np.array([lane["loss"] for lane in lanes]), np.array([lane["accuracy"] for lane in lanes])


@dataclasses.dataclass
class Chunk:
    """Runs in training, at the same time and at the same step.

    Attributes:
      runs: all of them.
      program: that trains those that are left.
      placed: those, in the program's lanes.
      state: theirs.
      step: that they have taken.
      slices: hash of a run -> its mean losses so far.
      ended: hash of a run -> its outcome, for those that diverged.
      elapsed_before_s: seconds of training before an interruption.
      started: `time.perf_counter` when this part of the training began.
    """

    runs: list[Run]
    program: Program
    placed: _Placed
    state: TrainState
    step: int
    slices: dict[str, list[float | None]]
    ended: dict[str, Outcome]
    elapsed_before_s: float = 0.0
    started: float = dataclasses.field(default_factory=time.perf_counter)

    def elapsed_s(self) -> float:
        """Seconds of training, also before an interruption."""
        return self.elapsed_before_s + time.perf_counter() - self.started

    def lanes(self) -> list[str]:
        """Hashes of the runs that are left, in the order of their lanes."""
        return [run.hash for _, run in self.placed]

    def take_steps(self, batch: tuple[Any, ...]) -> None:
        """The training steps of one call, of all lanes."""
        count, *arguments = batch
        self.state = self.program.call(self.state, self.placed, arguments)
        self.step += count

    def move(self, program: Program, alive: Sequence[int]) -> None:
        """Puts the lanes ``alive`` into a program with fewer."""
        program.steps_in_call = self.program.steps_in_call
        self.program, (self.state, self.placed) = program, program._take(self.state, self.placed, alive)

    def take_slice(self) -> list[int]:
        """Notes every run's mean loss since the last slice; returns the lanes that are alive."""
        state = self.state
        numbers = jax.device_get((state.recent, state.final, state.last_loss, state.nonfinite_step))
        alive = []
        for lane, run in self.placed:
            if run.hash in self.ended:
                continue
            recent, final, last, nonfinite = jax.tree.map(lambda x, lane=lane: x[lane], numbers)
            slices = self.slices[run.hash]
            slices.append(_number(recent.means()[0]))
            if nonfinite >= 0:
                self.ended[run.hash] = _diverged(self.step, int(nonfinite), last, final, slices)
            else:
                alive.append(lane)
        return alive

    def finish(self) -> None:
        """Evaluates the runs that did not diverge."""
        if len(self.ended) == len(self.runs):
            return
        test = self.program._test(self.state, self.placed)
        final, last = jax.device_get((self.state.final, self.state.last_loss))
        for lane, run in self.placed:
            if run.hash not in self.ended:
                mean = jax.tree.map(lambda x, lane=lane: x[lane], final).means()[0]
                results = (t[lane] for t in test)
                self.ended[run.hash] = _ended(self.step, last[lane], mean, self.slices[run.hash], *results)


def train_chunk(
    chunk: Chunk, shrink: Callable[[list[Run]], Program | None], after_step: Callable[[Chunk], None]
) -> list[Outcome]:
    """Trains a chunk from its step to the end, and evaluates the runs that did not diverge.

    Args:
      chunk: changed in place.
      shrink: the runs that are alive -> a program with fewer lanes for them, or ``None``.
      after_step: called after every call of the program but the last; what it raises ends the training.

    Returns:
      An outcome for each of ``chunk.runs``.
    """
    total, slice_steps = chunk.program.experiment.total_steps, chunk.program.slice_steps
    batches = chunk.program._batches(chunk.placed, chunk.step)
    since, started = chunk.step, time.perf_counter()
    try:
        while chunk.step < total:
            chunk.take_steps(next(batches))
            if chunk.step % slice_steps == 0 or chunk.step == total:
                alive = chunk.take_slice()
                if not alive:
                    break
                # A resumed chunk begins with single steps, and other work on the machine comes and goes.
                chunk.program.adapt_calls(chunk.step - since, time.perf_counter() - started)
                since, started = chunk.step, time.perf_counter()
                few = chunk.step < total and len(alive) <= chunk.program.capacity / 2
                smaller = shrink([chunk.placed.runs_K[lane] for lane in alive]) if few else None
                if smaller is not None:
                    batches.close()
                    chunk.move(smaller, alive)
                    batches = smaller._batches(chunk.placed, chunk.step)
            if chunk.step < total:
                after_step(chunk)
    finally:
        batches.close()
    chunk.finish()
    return [chunk.ended[run.hash] for run in chunk.runs]


def resumed_chunk(
    program: Program,
    runs: Sequence[Run],
    lanes: Sequence[str],
    state: TrainState,
    step: int,
    slices: dict[str, list[float | None]],
    ended: dict[str, Outcome],
) -> Chunk:
    """A `Chunk` from what was kept of one; ``lanes`` are the hashes of the runs that were left."""
    by_hash = {run.hash: run for run in runs}
    placed = program._place([by_hash[lane] for lane in lanes])
    return Chunk(list(runs), program, placed, state, step, slices, ended)


def put_data(dataset: Dataset, mesh: Mesh) -> Any:
    """The training examples on every device; ``None`` if they are to be streamed."""
    if dataset.placement == "stream":
        return None
    return jax.device_put(dataset.train.arrays(), NamedSharding(mesh, P()))


def varying_fields(runs: Sequence[Run]) -> list[str]:
    """The continuous fields in which runs differ."""
    paths = [path for path in runs[0].point if path == SEED or path in CONTINUOUS]
    return [path for path in paths if len({run.point[path] for run in runs}) > 1]


def _dtype(path: str) -> Any:
    return np.int32 if path in ("seed", "optimizer.warmup_steps") else jnp.result_type(float)


def _prepared(key: Any, batch: Any) -> Any:
    del key
    return batch


def _mapped(function: Callable[..., Any], size: int, in_axes: Any = 0) -> Callable[..., Any]:
    """``vmap`` over a leading axis of length ``size``; for 1 the same without it, as it makes convolutions grouped."""
    if size > 1:
        return jax.vmap(function, in_axes)

    def call(*arguments: Any) -> Any:
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(arguments)
        one = (x if axis is None else jax.tree.map(lambda x: x[0], x) for x, axis in zip(arguments, axes, strict=True))
        return jax.tree.map(lambda x: x[None], function(*one))

    return call


def _diverged(step: int, at: int, last: Any, final: Any, slices: list[float | None]) -> Outcome:
    return Outcome(DIVERGED, step, _number(last), _number(final.means()[0]), slices, None, None, at)


def _ended(
    steps: int, last: Any, mean: float, slices: list[float | None], test_loss: Any, test_accuracy: Any
) -> Outcome:
    if not math.isfinite(test_loss):  # the last update was one too many
        return Outcome(DIVERGED, steps, _number(last), _number(mean), slices, None, None, steps)
    test = (_number(test_loss), _number(test_accuracy))
    return Outcome(COMPLETED, steps, _number(last), _number(mean), slices, *test, None)


def _number(value: Any) -> float | None:
    """Seven digits, as many as float32 has; ``None`` for what JSON has not."""
    return float(f"{float(value):.7g}") if math.isfinite(value) else None
