"""What a config describes: data, model, rule and optimizer, as the work of a training step."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, final

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from depthmup_flax.auditing.audit_report import places, summary
from depthmup_flax.data import Dataset
from depthmup_flax.rule.info_trees import flatten_info, param_count, path_name
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.storage.sweep_records import SEED
from depthmup_flax.trainer.engine.device_batches import abstract_batch
from depthmup_flax.trainer.engine.network_task import GRADIENTS
from depthmup_flax.trainer.engine.network_training import NetworkTraining
from depthmup_flax.trainer.engine.recorder import NO_RECORDER, Recorder
from depthmup_flax.trainer.engine.task import (
    Course,
    Hyper,
    Means,
    Periods,
    Stepped,
    Task,
    TrainState,
    counted,
    new_state,
    step_key,
)
from depthmup_flax.trainer.engine.user_task import UserTask
from depthmup_flax.util.groups import grouped
from depthmup_flax.util.types import Batch, InfoTree


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """What a validated config describes: a network in training, or a training step of the user's own."""

    config: ConfigDict
    dataset: Dataset
    rule: Parametrization
    hyperparameters: Mapping[str, float]  # what runs of its program may differ in
    epoch_steps: int
    total_steps: int
    work: NetworkTraining | UserTask  # what is trained

    @property
    def network(self) -> NetworkTraining | None:
        """The network, if it is one that is trained."""
        return self.work if isinstance(self.work, NetworkTraining) else None

    @property
    def info(self) -> InfoTree:
        """`ParamInfo` of a network's parameters."""
        return self.network.info if self.network else {}

    @property
    def parameters(self) -> int:
        """Number of the parameters; of a training step, of the numbers in ``params``, or else in its state."""
        if isinstance(self.work, NetworkTraining):
            return param_count(self.work.info)
        state = self.work.shapes
        leaves = jax.tree.leaves(state.get("params", state))
        return max(1, sum(leaf.size for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)))

    def audit(self, rule: Parametrization | None = None) -> str | None:
        """What a network lacks of a rule, by default its own, or hides: "" for nothing; ``None`` of a training step."""
        return self.network.audited.audit.under(rule or self.rule).corrections if self.network else None

    @property
    def cost(self) -> float:
        """Parameters times steps times batch size: proportional to the work of a run in a family of networks."""
        return float(self.parameters) * self.total_steps * self.config.train.batch_size

    @property
    def periods(self) -> Periods:
        """Of a single run."""
        train, epoch = self.config.train, self.epoch_steps
        every = train.log_every, train.eval_every or epoch, train.checkpoint_every
        return Periods(self.total_steps, *every, self.course.steps)

    @property
    def convolves(self) -> bool:
        """Whether a loop over steps would be slow on a CPU: a parameter has more axes than layers, in, out."""
        params = self.network.params if self.network else None
        return max((len(leaf.shape) for leaf in jax.tree.leaves(params)), default=0) > 3

    @property
    def evaluates(self) -> bool:
        """Whether there is something to evaluate, and data for it."""
        return self.task.evaluate is not None and len(self.dataset.test) > 0

    @property
    def task(self) -> Task:
        """The pure functions that are trained."""
        return self.work.task

    @property
    def averaged(self) -> tuple[str, ...]:
        """The metrics that are averaged over steps."""
        return self.work.averaged

    @functools.cached_property
    def recorder(self) -> Recorder:
        """What is measured in the first third of a run."""
        return (
            self.network.recorder(self.total_steps) if self.network and self.config.train.record_course else NO_RECORDER
        )

    @property
    def course(self) -> Course:
        """The names and steps of `recorder`."""
        return self.recorder.course

    def state_shapes(self) -> TrainState:
        """A new training state with shapes and dtypes in place of arrays; computes nothing."""
        return jax.eval_shape(lambda carry: new_state(carry, self.averaged, self.course), self.work.shapes)

    def step_shapes(self) -> tuple[TrainState, Any]:
        """The arguments of `step`'s function with shapes and dtypes in place of arrays."""
        return self.state_shapes(), abstract_batch(self.config, self.dataset)

    def parameter_table(self) -> str:
        """The parameters, for people; of a training step path, shape and type of every array of the state."""
        if isinstance(self.work, NetworkTraining):
            return self.work.table(self.epoch_steps)
        leaves = jax.tree_util.tree_leaves_with_path(self.work.shapes)
        return "\n".join(f"{path_name(path)}  {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves)

    def prepare(self, key: jax.Array | None, batch: Batch) -> Any:
        """What the task reads of a batch; without a key for an evaluation."""
        return self.dataset.prepare(self.config.data.augment, key, batch)

    # The pure functions of a run. Random keys are folded from the seed and the step; ``values`` are the hyperparameters
    # that replace the experiment's own.

    def init(self, values: Hyper) -> TrainState:
        """A fresh state."""
        hyper = {**self.hyperparameters, **values}
        return new_state(self.task.init(jax.random.key(hyper[SEED]), hyper), self.averaged, self.course)

    def step(self, values: Hyper) -> Callable[[TrainState, Any], Stepped]:
        """The training step of a prepared batch: the next state, and what `record` reads of the gradients."""
        task, hyper = self.task, {**self.hyperparameters, **values}
        sampling = {"sample": self.recorder.sample} if self.course.names else {}
        average_from = max(0, self.total_steps - (self.config.train.average_steps or self.epoch_steps))

        def step(state: TrainState, batch: Any) -> Stepped:
            with self._precision():
                carry, metrics = task.step(state.carry, batch, hyper, step_key(hyper[SEED], state.step), **sampling)
            counts = counted(state, carry, metrics, self.config.train.log_every, average_from)
            return counts, metrics.get(GRADIENTS, ())

        return step

    def evaluate(self, values: Hyper) -> Callable[[TrainState, Batch], Means]:
        """The metrics of a batch of the test split."""
        hyper, task = {**self.hyperparameters, **values}, self.task

        def evaluate(state: TrainState, batch: Batch) -> Means:
            size, mask, prepared = len(jax.tree.leaves(batch)[0]), batch.get("mask"), self.prepare(None, batch)
            assert task.evaluate is not None
            with self._precision():
                metrics = task.evaluate(state.carry, (prepared, mask) if task.masked else prepared, hyper)
            return metrics if isinstance(metrics, Means) else Means.of_batch(metrics, size)

        return evaluate

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        """In which products are traced. A network that asks for a precision of its own only does so without this."""
        precision = self.config.train.matmul_precision
        return jax.default_matmul_precision(precision) if precision else contextlib.nullcontext()

    def description(self, mesh: Mesh) -> str:
        """Model, rule, data and devices, a line each, for the start of a run."""
        model, data, optimizer, rule = self.config.model, self.dataset, self.config.optimizer, self.rule
        place = "streamed" if data.placement == "stream" else "on the device"
        sizes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
        layout = f" ({sizes})" if mesh.shape["data"] != mesh.size else ""  # else devices only split the batch
        processes = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
        return (
            f"model  {model.name}, width {model.width} (base {model.base_width or model.width}), "
            f"depth {model.depth} (base {model.base_depth or model.depth}), {self.parameters:,} parameters\n"
            f"rule   {self.config.parametrization.preset}, alpha {rule.alpha:g}, gamma {rule.gamma:g}; "
            f"{optimizer.name}, learning rate {optimizer.learning_rate:g}\n"
            f"{_notes(self.network) if self.network else ''}"
            f"data   {data.name}, {data.train_size} train and {len(data.test):,} {data.evaluated} {data.describe()}, "
            f"{place}\n"
            f"run    {self.total_steps} steps of {self.config.train.batch_size} on {jax.device_count()} "
            f"{jax.devices()[0].device_kind} device(s){layout}{processes}"
        )


def _notes(network: NetworkTraining) -> str:
    """What parameters carry, which initial values are rescaled, and what the audit says of what trains anyway."""
    carried = {path: leaf.carried for path, leaf in flatten_info(network.info).items() if leaf.carries}
    lines = [
        f"carry  times {factor}, which the code lacks: {summary(paths)}\n"
        for factor, paths in grouped(carried, carried.__getitem__).items()
    ]
    starts = {path: str(start) for path, start in network.starts(network.rule).items() if start.changes}
    lines += [
        f"init   {start}, as dm.rescale_init does: {summary(paths)}\n"
        for start, paths in grouped(starts, starts.__getitem__).items()
    ]
    audit = network.audited.audit.under(network.rule)
    if audit.certain:
        lines.append("audit  multipliers are missing, and model.audit is False: hyperparameters may not transfer\n")
    elif audit.not_judged:
        lines.append(f"audit  not judged, so check by eye: {places(audit.not_judged)}\n")
    return "".join(lines)
