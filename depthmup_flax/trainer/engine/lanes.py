"""One compiled program that trains many runs at a time, in lanes: vectorized on each device, spread over devices.

Runs share it if they differ only in the seed and other hyperparameters of one experiment. ``per_device`` lanes are
mapped by ``vmap``; devices are the mesh axis ``lanes`` and do not communicate. With one lane per device the program is
the plain training step.

Runs of one seed read the same examples. If possible, all lanes of a device have one seed: then the device prepares its
examples once, and computes the first layers of all lanes in one product.

Axes in names: ``K`` lanes of all devices, ``V`` lanes of a device, ``U`` distinct seeds on a device, ``D`` devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from depthmup_flax.devices import sharding
from depthmup_flax.storage.sweep_records import SEED, finite_or_none
from depthmup_flax.trainer.engine.device_batches import StepsCall, batch_of, calls, host_test_batches, read_ahead
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.trainer.engine.outcome import outcome, read
from depthmup_flax.trainer.engine.program import Program, take_steps
from depthmup_flax.trainer.engine.task import Hyper, Means, Stepped, TrainState, batch_key
from depthmup_flax.util.types import ArrayTree, Batch, Json

_AXIS = "lanes"
LANES = P(_AXIS)


@dataclasses.dataclass(frozen=True)
class LaneRun:
    """A run that shares a program with others of its experiment."""

    hash: str  # its name
    hyperparameters: Mapping[str, float]  # those of the experiment, the seed included

    @property
    def seed(self) -> int:
        """Of initialization, data order and augmentation."""
        return int(self.hyperparameters[SEED])


T = TypeVar("T")
R = TypeVar("R", bound=LaneRun)


def cohorts(runs: Sequence[R], per_device: int, devices: int) -> list[list[R]]:
    """``runs`` in groups that train together, each of as many runs as there are lanes.

    If the runs of every seed fill whole devices, each device gets runs of one seed that are neighbors in the given
    order. Otherwise the order is unchanged.
    """
    order, pieces, capacity = list(runs), _pieces(runs, per_device), per_device * devices
    if all(len(piece) == per_device for piece in pieces):
        rank = {run.hash: i for i, run in enumerate(runs)}
        order = [run for piece in sorted(pieces, key=lambda piece: rank[piece[0].hash]) for run in piece]
    return [order[i : i + capacity] for i in range(0, len(order), capacity)]


def one_seed_fits(runs: Sequence[LaneRun], per_device: int, devices: int) -> bool:
    """Whether all ``runs`` get a lane if the lanes of a device have one seed."""
    return len(_pieces(runs, per_device)) <= devices


def lay_out(runs: Sequence[R], per_device: int, devices: int, one_seed: bool) -> tuple[list[R], dict[str, int]]:
    """The run of every lane, device after device, and hash of a run -> lane. Lanes that are left repeat a run.

    With ``one_seed``, for which `one_seed_fits`, the lanes of a device have one seed; otherwise runs keep their order.
    """
    size = per_device if one_seed else 1
    pieces = _pieces(runs, per_device) if one_seed else [[run] for run in runs]
    assert len(pieces) * size <= per_device * devices
    pieces += [[runs[0]]] * (per_device * devices // size - len(pieces))
    lanes = [run for piece in pieces for run in [*piece, *[piece[-1]] * (size - len(piece))]]
    hashes = [run.hash for run in lanes]
    return lanes, {name: hashes.index(name) for name in hashes}


def _pieces(runs: Sequence[R], size: int) -> list[list[R]]:
    """Runs of one seed, ``size`` at a time."""
    by_seed: dict[int, list[R]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, []).append(run)
    return [one[i : i + size] for one in by_seed.values() for i in range(0, len(one), size)]


def lane_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """One axis, ``lanes``, over ``devices``, by default all; in their order, as they do not communicate."""
    return Mesh(np.array(devices or jax.devices()), (_AXIS,), axis_types=(AxisType.Auto,))


@struct.dataclass
class LaneValues:
    """What lanes differ in."""

    values_K: Mapping[str, jax.typing.ArrayLike]  # hyperparameter -> value of each lane
    seed_place_K: jax.typing.ArrayLike  # index of a lane's seed among its device's
    seeds_DU: jax.typing.ArrayLike  # the seeds of each device, device after device


@dataclasses.dataclass(frozen=True)
class Lanes:
    """Runs in the lanes of a program."""

    runs_K: list[LaneRun]
    lane_of: dict[str, int]  # hash of a run -> its lane; other lanes repeat one
    values: LaneValues


class LaneProgram(Program):
    """Trains up to ``capacity`` runs of one experiment at a time, fewer if ``one_seed`` leaves lanes empty.

    ``runs`` are all that may be trained; with ``one_seed`` the lanes of a device have the same seed and so the same
    examples; see `lay_out`. What the runs differ in is data of the program, and so are the hyperparameters of
    ``free``, in which runs that come later may differ.
    """

    def __init__(
        self,
        experiment: Experiment,
        runs: Sequence[LaneRun],
        mesh: Mesh,
        per_device: int,
        one_seed: bool,
        data: Batch | None,
        free: Collection[str] = (),
    ) -> None:
        periods = dataclasses.replace(experiment.periods, eval_every=0, checkpoint_every=0)
        super().__init__(experiment, mesh, data, periods)
        self.per_device, self.one_seed, self.capacity = per_device, one_seed, per_device * mesh.size
        self._seeds_per_device = 1 if one_seed else min(per_device, len({run.seed for run in runs}))
        # The runs may agree in a value that is not the experiment's, which may be that of a run of another shard.
        differs = lambda name: any(run.hyperparameters[name] != experiment.hyperparameters[name] for run in runs)
        names = runs[0].hyperparameters.keys()
        self._names = sorted({SEED, *filter(differs, names), *names & set(free)})
        # Axes of a call's examples: S if there are several steps, U of all devices, B, ...
        self._leading = mesh.size * self._seeds_per_device, experiment.config.train.batch_size
        self._split = LANES if self.call_length.most == 1 else P(None, _AXIS)
        self._abstract_values: LaneValues = self._placed(self._laid_out(runs[:1]).values, LANES)
        init = lambda values_V: _mapped(experiment.init, per_device)(values_V.values_K)
        self._init = jax.jit(self._on_devices(init, LANES), compiler_options=self._drawing)
        self._evaluate = jax.jit(self._on_devices(self._evaluate_lanes, LANES, LANES, P()))
        self.abstract_state = self._placed(jax.eval_shape(self._init, self._abstract_values), LANES)
        call = StepsCall(P(), self._split)  # type: ignore[arg-type]
        self._steps = jax.jit(self._on_devices(self._take_steps, LANES, LANES, call, P()), donate_argnums=0)
        self.compiled = self.traced().lower().compile()

    @property
    def bytes_per_device(self) -> int:
        """Memory of a training step on one device, by the compiler's account."""
        memory = self.compiled.memory_analysis()
        size = lambda kind: getattr(memory, f"{kind}_size_in_bytes", 0)  # no account: None
        return size("temp") + size("argument") + size("output") - size("alias")  # a donated state counts once

    def place(self, runs: Sequence[LaneRun]) -> Lanes:
        """Lanes for ``runs``, at most `capacity` (`depthmup_flax.trainer.engine.lanes`)."""
        lanes = self._laid_out(runs)
        return dataclasses.replace(lanes, values=jax.device_put(lanes.values, self._place(LANES)))

    def init(self, lanes: Lanes) -> TrainState:
        """Fresh networks."""
        return self._init(lanes.values)

    def calls(self, lanes: Lanes, first_step: int) -> Generator[StepsCall, None, None]:
        """The data of the calls from ``first_step`` on; to be closed."""
        seeds = np.asarray(lanes.values.seeds_DU).tolist()
        dataset, size = self.experiment.dataset, self.experiment.config.train.batch_size
        on_host = calls(dataset, seeds, size, first_step, self.call_length)
        place = self._place(self._split)
        return read_ahead(dataset, (StepsCall(call.count, jax.device_put(call.examples, place)) for call in on_host))

    def take(self, state: TrainState, lanes: Lanes, call: StepsCall) -> TrainState:
        """The state after the steps of ``call``; ``state`` is donated."""
        return self.compiled(state, lanes.values, call, self._data)

    def test(self, state: TrainState, lanes: Lanes) -> list[dict[str, float]]:
        """``test_loss``, or ``validation_loss``, and other metrics of every lane; none without an evaluation."""
        if not self.experiment.evaluates:
            return [{} for _ in lanes.runs_K]
        train, place = self.experiment.config.train, self._place(P())
        size = train.eval_batch_size
        if self.per_device > 1:
            # Activations of all lanes are alive at once: no more of them than a training step has.
            size = min(size, 2 * train.batch_size)
        dataset, masked = self.experiment.dataset, self.experiment.task.masked
        on_host = host_test_batches(dataset, min(size, len(dataset.test)), slice(None), masked=masked)
        on_devices = (jax.device_put(batch, place) for batch in on_host)
        with contextlib.closing(read_ahead(dataset, on_devices)) as batches:
            metrics = jax.device_get(self._evaluated(state, lanes.values, batches))
        return [lane.means(f"{dataset.evaluated}_") for lane in unstacked(metrics)]

    def _laid_out(self, runs: Sequence[LaneRun]) -> Lanes:
        """`place` on the host."""
        runs_K, lane_of = lay_out(runs, self.per_device, self.mesh.size, self.one_seed)
        seed_place_K: list[int] = []
        seeds_DU: list[int] = []
        for start in range(0, self.capacity, self.per_device):
            here = [run.seed for run in runs_K[start : start + self.per_device]]
            distinct = list(dict.fromkeys(here))
            seed_place_K += [distinct.index(seed) for seed in here]
            seeds_DU += [*distinct, *[distinct[0]] * (self._seeds_per_device - len(distinct))]
        values_K = {}
        for name in self._names:
            column = np.array([run.hyperparameters[name] for run in runs_K])
            whole = np.issubdtype(column.dtype, np.integer)
            values_K[name] = column.astype(np.int32 if whole else jnp.result_type(float))
        return Lanes(
            runs_K, lane_of, LaneValues(values_K, np.array(seed_place_K, np.int32), np.array(seeds_DU, np.int32))
        )

    def _take_steps(self, state_V: TrainState, values_V: LaneValues, call: StepsCall, data: Batch | None) -> TrainState:
        step = functools.partial(self._step, values_V, data)
        each = functools.partial(self._each, values_V)

        def take(state: TrainState) -> TrainState:
            with sharding.traced_for(self.mesh):
                return take_steps(self.experiment, self.call_length, step, each, state, call)

        # A single lane has no axis between the steps of a call: XLA:CPU would compute its moments twice to add one.
        return take(state_V) if self.per_device > 1 else _with_axis(take(_first(state_V)))

    def _each(self, values_V: LaneValues, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.per_device > 1:
            return functools.partial(jax.vmap(function), values_V.values_K)
        return functools.partial(function, _first(values_V.values_K))

    def _step(self, values_V: LaneValues, data: Batch | None, state: TrainState, examples_U: Any) -> Stepped:
        """``state``: of all lanes, or of the only one, without an axis of lanes."""
        step = state.step.ravel()[0]  # the same in all lanes

        def prepare(seed: jax.Array, examples: Any) -> Any:
            return self.experiment.prepare(batch_key(seed, step), batch_of(self.experiment.dataset, data, examples))

        def train(values: Hyper, state: TrainState, batch: Any) -> Stepped:
            return self.experiment.step(values)(state, batch)

        batch_U = _mapped(prepare, self._seeds_per_device)(values_V.seeds_DU, examples_U)
        if self._seeds_per_device == 1:  # the lanes share a prepared batch
            return self._each(values_V, lambda values, state: train(values, state, _first(batch_U)))(state)
        # A copy for each lane: mapping twice, over seeds and over the lanes of each, is slower.
        batch_V = jax.tree.map(lambda x: x[values_V.seed_place_K], batch_U)
        return self._each(values_V, train)(state, batch_V)

    def _evaluate_lanes(self, state_V: TrainState, values_V: LaneValues, batch: Batch) -> Means:
        on_batch = lambda state, values: self.experiment.evaluate(values)(state, batch)
        return _mapped(on_batch, self.per_device)(state_V, values_V.values_K)

    def _on_devices(self, function: Callable[..., T], *specs: Any) -> Callable[..., T]:
        """``function`` on each device's part of its arguments, which are split as ``specs`` say."""
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=LANES, check_vma=False)

    def _place(self, spec: P) -> NamedSharding:
        return NamedSharding(self.mesh, spec)


def unstacked(tree: ArrayTree) -> list[Any]:
    """The tree of each lane, from arrays with a leading axis of lanes."""
    return [jax.tree.map(lambda x, lane=lane: x[lane], tree) for lane in range(len(jax.tree.leaves(tree)[0]))]


def _mapped(function: Callable[..., Any], size: int) -> Callable[..., Any]:
    """``vmap`` over a leading axis of length ``size``; for 1 the same without it, as it makes convolutions grouped."""
    return jax.vmap(function) if size > 1 else lambda *trees: _with_axis(function(*_first(trees)))


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[0], tree)


def _with_axis(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[None], tree)


@dataclasses.dataclass
class Cohort:
    """Runs in training, all at the same step."""

    runs: list[LaneRun]
    program: LaneProgram
    lanes: Lanes
    state: TrainState  # of the lanes
    step: int
    slices: dict[str, list[float | None]]  # hash of a run -> its mean loss over each time slice so far
    outcomes: dict[str, Json]  # hash of a run that has ended -> its `outcome`
    elapsed_before_s: float = 0.0  # seconds of training before an interruption
    started: float = dataclasses.field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, program: LaneProgram, runs: Sequence[LaneRun]) -> Cohort:
        """Fresh networks for ``runs``, which fit into ``program`` (`depthmup_flax.trainer.engine.lanes`)."""
        lanes = program.place(runs)
        return cls(list(runs), program, lanes, program.init(lanes), 0, {run.hash: [] for run in runs}, {})

    def elapsed_s(self) -> float:
        """Seconds of training."""
        return self.elapsed_before_s + time.perf_counter() - self.started

    def end_slice(self) -> bool:
        """Appends to `slices`, and records runs that diverged; returns whether others are left."""
        numbers = unstacked(read(self.state))
        for run_hash, lane in self.lanes.lane_of.items():
            if run_hash not in self.outcomes:
                self.slices[run_hash].append(seven_digits(numbers[lane].recent.means()["loss"]))
                if numbers[lane].nonfinite_step >= 0:
                    self.outcomes[run_hash] = self._outcome(numbers[lane], None)
        return len(self.outcomes) < len(self.runs)

    def finish(self) -> None:
        """Evaluates the runs that have not diverged."""
        left = {run_hash: lane for run_hash, lane in self.lanes.lane_of.items() if run_hash not in self.outcomes}
        if left:
            tests, numbers = self.program.test(self.state, self.lanes), unstacked(read(self.state))
            self.outcomes |= {run: self._outcome(numbers[lane], tests[lane]) for run, lane in left.items()}

    def _outcome(self, numbers: TrainState, test: Mapping[str, float] | None) -> Json:
        course = self.program.experiment.course.columns(numbers.course, int(numbers.step))
        return {**outcome(numbers, test, seven_digits), "course": course}


def train(cohort: Cohort, after_call: Callable[[Cohort], None]) -> list[Json]:
    """Trains ``cohort``, fresh or resumed, in place, to the end; returns the outcome of each of its runs.

    ``after_call`` is called after every call of the program but the last; its exceptions end the training.
    """
    program, since, started = cohort.program, cohort.step, time.perf_counter()
    with contextlib.closing(program.calls(cohort.lanes, cohort.step)) as calls:
        while cohort.step < program.periods.total:
            call = next(calls)
            cohort.state = program.take(cohort.state, cohort.lanes, call)
            cohort.step += int(call.count)
            if program.periods.logs_at(cohort.step):
                if not cohort.end_slice():
                    break
                # A program starts with single steps, and the load of the machine varies.
                program.call_length.adapt((cohort.step - since) / (time.perf_counter() - started))
                since, started = cohort.step, time.perf_counter()
            if cohort.step < program.periods.total:
                after_call(cohort)
    cohort.finish()
    return [cohort.outcomes[run.hash] for run in cohort.runs]


def seven_digits(value: float) -> float | None:
    """``value`` with the digits of a float32; ``None`` if it is not finite."""
    return finite_or_none(float(f"{float(value):.7g}"))
