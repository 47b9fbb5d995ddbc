"""What a config describes: data, model, rule and optimizer, as the work of a training step."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from depthmup_flax.auditing.audit_report import Audit, places, summary
from depthmup_flax.auditing.rescaled_init import Start, carried_factors
from depthmup_flax.config.fields import get_field, make_parametrization, set_field
from depthmup_flax.data import Dataset
from depthmup_flax.networks.import_paths import is_import_path
from depthmup_flax.networks.model_functions import ModelFunctions, model_functions
from depthmup_flax.rule.annotations import AxisNames
from depthmup_flax.rule.info_trees import flatten_info, param_count, path_name
from depthmup_flax.rule.measures import measures, sampled
from depthmup_flax.rule.param_table import param_table
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.storage.sweep_records import CONTINUOUS, SEED
from depthmup_flax.trainer.engine.config_optimizer import make_optimizer, update_facts
from depthmup_flax.trainer.engine.losses import Loss, named_loss
from depthmup_flax.trainer.engine.network_task import (
    GRADIENTS,
    NetworkState,
    network_task,
    our_functions,
    state_of,
    without_boxes,
)
from depthmup_flax.trainer.engine.task import (
    NO_COURSE,
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
from depthmup_flax.trainer.engine.user_network import UserNetwork, rescaled
from depthmup_flax.trainer.engine.user_task import UserTask
from depthmup_flax.util.groups import grouped
from depthmup_flax.util.types import ArrayTree, Batch, InfoTree, Json

RULE = "parametrization"  # the section of a config; hyperparameters with this beginning are fields of the rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment(abc.ABC):
    """What a validated config describes."""

    config: ConfigDict
    dataset: Dataset
    rule: Parametrization
    epoch_steps: int
    total_steps: int
    info: InfoTree = dataclasses.field(default_factory=dict)  # `ParamInfo` of a network's parameters
    audited: Audit | None = None  # of a user's network
    init_factors: Mapping[str, Start] = dataclasses.field(default_factory=dict)  # of a user's network, by path
    # Path of a parameter of our models -> its logical axes, by which it is sharded.
    axes: Mapping[str, AxisNames] = dataclasses.field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """Number of the model's parameters."""
        return param_count(self.info)

    @property
    def audit(self) -> str | None:
        """What the audit of a user's network finds missing or cannot judge: "" for ``ok``; ``None`` without audit."""
        return None if self.audited is None else self.audited.corrections

    @property
    def cost(self) -> float:
        """Parameters times steps times batch size: proportional to the work of a run in a family of networks."""
        return float(self.parameters) * self.total_steps * self.config.train.batch_size

    @functools.cached_property
    def hyperparameters(self) -> Mapping[str, float]:
        return hyperparameters(self.config)

    @property
    def periods(self) -> Periods:
        """Of a single run."""
        train, epoch = self.config.train, self.epoch_steps
        every = train.log_every, train.eval_every or epoch, train.checkpoint_every
        return Periods(self.total_steps, *every, self.course.steps)

    @property
    def convolves(self) -> bool:
        """Whether a loop over steps would be slow on a CPU: a parameter has more axes than layers, in, out."""
        leaves = jax.tree.leaves(getattr(self, "variables", {}).get("params"))
        return max(map(len, self.axes.values() or (leaf.shape for leaf in leaves)), default=0) > 3

    @property
    def evaluates(self) -> bool:
        """Whether there is something to evaluate, and data for it."""
        return self.task.evaluate is not None and len(self.dataset.test) > 0

    @property
    @abc.abstractmethod
    def task(self) -> Task:
        """What is trained."""

    @property
    @abc.abstractmethod
    def averaged(self) -> tuple[str, ...]:
        """The metrics that are averaged over steps."""

    @property
    def course(self) -> Course:
        """What is measured in the first third."""
        return NO_COURSE

    @property
    @abc.abstractmethod
    def carry_shapes(self) -> Any:
        """What a step carries, with shapes and dtypes in place of arrays; computes nothing."""

    def state_shapes(self) -> TrainState:
        """A new training state of `carry_shapes`."""
        return jax.eval_shape(lambda carry: new_state(carry, self.averaged, self.course), self.carry_shapes)

    def sample(self, tree: ArrayTree) -> ArrayTree:
        """What `record` reads of parameters or their gradients."""
        return tree

    def record(self, values: Hyper, row: jax.Array, state: TrainState, gradients: Any, before: Any) -> Any:
        """The course with one more ``row`` [N], of the step that led to ``state`` from one of the sample ``before``."""
        return state.course

    @abc.abstractmethod
    def parameter_table(self) -> str:
        """The parameters, for people."""

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
        sampling = {"sample": self.sample} if self.course.names else {}
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

    def _notes(self) -> str:
        """What parameters carry, which initial values are rescaled, and what the audit says of what trains anyway."""
        carried = {path: leaf.carried for path, leaf in flatten_info(self.info).items() if leaf.carries}
        lines = [
            f"carry  times {factor}, which the code lacks: {summary(paths)}\n"
            for factor, paths in grouped(carried, carried.__getitem__).items()
        ]
        lines += [
            f"init   {start}, as dm.rescale_init does: {summary(paths)}\n"
            for start, paths in grouped(self.init_factors, self.init_factors.__getitem__).items()
            if start.changes
        ]
        if self.audited is not None and self.audited.certain:
            lines.append("audit  multipliers are missing, and model.audit is False: hyperparameters may not transfer\n")
        elif self.audited is not None and self.audited.not_judged:
            lines.append(f"audit  not judged, so check by eye: {places(self.audited.not_judged)}\n")
        return "".join(lines)

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
            f"{self._notes()}"
            f"data   {data.name}, {data.train_size} train and {len(data.test):,} {data.evaluated} {data.describe()}, "
            f"{place}\n"
            f"run    {self.total_steps} steps of {self.config.train.batch_size} on {jax.device_count()} "
            f"{jax.devices()[0].device_kind} device(s){layout}{processes}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkExperiment(Experiment):
    """A network, trained by the gradient of a loss with an optax optimizer that follows the rule."""

    model: nn.Module | UserNetwork  # reads the output of dataset.prepare
    made: ModelFunctions | None = None  # of a user's network under ``rule``: to make one takes as long as to trace it
    variables: Mapping[str, ArrayTree]  # shapes: "params" and other collections
    optimizer: optax.GradientTransformation  # of the whole update

    @functools.cached_property
    def task(self) -> Task:
        own, train = self.hyperparameters, self.config.train

        def network(hyper: Hyper) -> tuple[ModelFunctions, optax.GradientTransformation]:
            fields = {path: x for path, x in hyper.items() if path != SEED and x is not own.get(path)}
            if not fields:
                return self.functions(self.rule), self.optimizer
            changed, rule = self.config.copy_and_resolve_references(), self._rule(hyper)
            with changed.ignore_type():  # values may be traced
                for path, value in fields.items():
                    if not path.startswith(f"{RULE}."):
                        set_field(changed, path, value)
            return self.functions(rule), make_optimizer(changed, self.info, rule, self.total_steps)

        spec, loss = self.dataset.input_spec, self.loss
        return network_task(network, spec, loss, accumulate=train.accumulate, ema_decay=train.ema_decay)

    def _rule(self, hyper: Hyper) -> Parametrization:
        """The rule under ``hyper``: the same object, of which `made` is, unless one of its numbers is replaced."""
        numbers = {path.removeprefix(f"{RULE}."): x for path, x in hyper.items() if path.startswith(f"{RULE}.")}
        replaced = {name: x for name, x in numbers.items() if x is not self.hyperparameters.get(f"{RULE}.{name}")}
        return self.rule.replace(**replaced) if replaced else self.rule

    @property
    def averaged(self) -> tuple[str, ...]:
        return self.loss.averaged

    @functools.cached_property
    def course(self) -> Course:
        if not self.config.train.record_course:
            return NO_COURSE
        measured = functools.partial(self._measures, self.rule, self.info)
        params = without_boxes(self.variables)[0]
        return Course.of(tuple(jax.eval_shape(measured, params, params, params)), self.total_steps)

    def _measures(self, rule: Parametrization, info: InfoTree, *trees: ArrayTree) -> dict[str, jax.Array]:
        known = {name: self._updates.get(name) for name in ("degree", "geometry")}
        if known["degree"] == 1 and self.config.optimizer.kwargs.nesterov:
            known["degree"] = None  # the updates are no multiple of the momentum
        return measures(info, rule, *trees, **known)

    def sample(self, tree: ArrayTree) -> ArrayTree:
        return self._sampled(self.info, tree)[1]

    def _sampled(self, info: InfoTree, tree: ArrayTree) -> tuple[InfoTree, ArrayTree]:
        whole = self.config.mesh.fsdp > 1  # else a part of an array that is split over devices would be sent
        return (info, tree) if whole else sampled(info, tree, self._updates.get("geometry"))

    def record(self, values: Hyper, row: jax.Array, state: TrainState, gradients: Any, before: Any) -> Any:
        rule = self._rule({**self.hyperparameters, **values})
        info, after = self._sampled(self.info, state.carry.params)
        trace = optax.tree_utils.tree_get(state.carry.opt_state, "trace") if self._updates.get("degree") == 1 else None
        unmasked = lambda x, kept: jnp.zeros_like(x) if isinstance(kept, optax.MaskedNode) else kept  # of frozen ones
        momentum = trace and self.sample(jax.tree.map(unmasked, state.carry.params, trace))
        # The step's own updates would have to be kept in memory, and its parameters could not be replaced in place.
        found = self._measures(rule, info, gradients, jax.tree.map(jnp.subtract, after, before), before, momentum)
        column = jnp.stack([found[name].astype(jnp.float32) for name in self.course.names])[:, None]
        return (jnp.where(row, column, *state.course),)

    @functools.cached_property
    def _updates(self) -> Json:
        """See `update_facts`."""
        return update_facts(self.config, self.info)

    @functools.cached_property
    def loss(self) -> Loss:
        """Of the outputs."""
        return named_loss(self.config.loss, self.config.label_smoothing)

    def functions(self, rule: Parametrization) -> ModelFunctions:
        """The network under a rule, as pure functions."""
        if isinstance(self.model, UserNetwork):
            made = self.made if rule is self.rule else None  # numbers of another rule may be traced
            made = made or model_functions(self.model.make(rule), self.model.config.name)
            of_init = lambda path: self.init_factors[path].factor
            carried = carried_factors(self.info, rule).items()
            return rescaled(made, {path: dataclasses.replace(one, factor=of_init(path)) for path, one in carried})
        return our_functions(self.model if rule is self.rule else self.model.clone(rule=rule))

    @property
    def carry_shapes(self) -> NetworkState:
        state = lambda variables: state_of(*without_boxes(variables), self.optimizer, self.config.train.ema_decay)
        return jax.eval_shape(state, dict(self.variables))

    def parameter_table(self) -> str:
        """`param_table` for the optimizer of this run."""
        optimizer = self.config.optimizer
        return param_table(
            self.info,
            self.rule,
            **self._updates,
            weight_decay=optimizer.weight_decay,
            decay_width_exponent=optimizer.decay_width_exponent,
            learning_rate=optimizer.learning_rate,
            epoch_steps=self.epoch_steps,
            frozen=optimizer.frozen,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepExperiment(Experiment):
    """A training step of the user's own."""

    user: UserTask

    @property
    def parameters(self) -> int:
        """Number of the floating-point numbers in ``params`` of the state, or else in the whole state."""
        state = self.user.shapes
        leaves = jax.tree.leaves(state.get("params", state))
        return max(1, sum(leaf.size for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)))

    @property
    def task(self) -> Task:
        return self.user.task

    @property
    def averaged(self) -> tuple[str, ...]:
        return self.user.averaged

    @property
    def carry_shapes(self) -> Any:
        return self.user.shapes

    def parameter_table(self) -> str:
        """Path, shape and type of every array of the state."""
        leaves = jax.tree_util.tree_leaves_with_path(self.user.shapes)
        return "\n".join(f"{path_name(path)}  {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves)


def hyperparameters(config: ConfigDict) -> dict[str, float]:
    """What runs of one compiled program may differ in: the seed, fields of `CONTINUOUS` that are set, and the rule.

    A preset is a name of the rule's numbers. A network of the user's own is audited and initialized for one preset, so
    of its rule only the fields of `CONTINUOUS` are among them, and none if the network may keep numbers of the rule as
    attributes, as NNX and Equinox modules do: traced, they would be other parts of it, or lost.
    """
    fields = {path: get_field(config, path) for path in CONTINUOUS}
    values = {path: value for path, value in fields.items() if value is not None}
    if is_import_path(config.model.name):
        if UserNetwork(config.model, 0).keeps_rule:
            values = {path: value for path, value in values.items() if not path.startswith(f"{RULE}.")}
    else:
        values |= {f"{RULE}.{name}": value for name, value in make_parametrization(config).numbers().items()}
    values |= {f"hyper.{name}": value for name, value in config.hyper.items()}
    whole = ("optimizer.warmup_steps",)
    return {SEED: config.seed, **{path: value if path in whole else float(value) for path, value in values.items()}}
