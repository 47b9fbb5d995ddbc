"""From a config to the objects of a run: data, model, rule, optimizer. Bad input fails here, before compilation."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from clu.parameter_overview import get_parameter_overview
from jax.sharding import AbstractMesh, Mesh
from ml_collections import ConfigDict

from depthmup_flax.config.fields import get_field, make_parametrization, optimizer_kwargs, set_field, validate
from depthmup_flax.data import Dataset, load, steps_of_epoch
from depthmup_flax.engine.losses import CrossEntropy, Loss
from depthmup_flax.engine.multi_step import Periods
from depthmup_flax.engine.network import network_task, our_functions, row_major_gradients, state_of, without_boxes
from depthmup_flax.engine.norms import norms
from depthmup_flax.engine.step import TrainState, new_state
from depthmup_flax.engine.task import Hyper, Task
from depthmup_flax.engine.workload import Workload
from depthmup_flax.models import MODELS, create_model
from depthmup_flax.parallel.sharding import MESH_AXES, on_whole_matrices, state_shardings
from depthmup_flax.records.table import CONTINUOUS, SEED
from depthmup_flax.rule.annotations import AxisNames
from depthmup_flax.rule.directions import direction, direction_eps
from depthmup_flax.rule.guards.geometry import geometry_of
from depthmup_flax.rule.guards.traits import homogeneity, require_direction
from depthmup_flax.rule.info_trees import param_count
from depthmup_flax.rule.muon import muon, muon_geometry
from depthmup_flax.rule.optimizer import depthmup, freeze, warmup_schedule
from depthmup_flax.rule.param_table import param_table
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.rule.roles import axes_from_annotations, info_from_annotations, init_shapes, variable_shapes
from depthmup_flax.user_code.model_functions import ModelFunctions
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree


def _same(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    return optimizer


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What a validated config describes."""

    config: ConfigDict
    dataset: Dataset
    model: nn.Module  # reads the output of dataset.prepare
    parametrization: Parametrization
    info: InfoTree
    variables: dict[str, ArrayTree]  # shapes of what model.init returns
    axes: dict[str, AxisNames]  # path of a parameter -> its logical axes
    optimizer: optax.GradientTransformation  # of the whole update
    epoch_steps: int
    total_steps: int

    @property
    def parameters(self) -> int:
        """Number of the model's parameters."""
        return param_count(self.info)

    @property
    def cost(self) -> float:
        """Parameters times steps times batch size: proportional to the work of a run in a family of networks."""
        return float(self.parameters) * self.total_steps * self.config.train.batch_size

    @functools.cached_property
    def workload(self) -> Workload:
        """What the programs of `depthmup_flax.engine` train; its hyperparameters are those of `hyperparameters`."""
        config, train = self.config, self.config.train
        return Workload(
            task=self._task(),
            dataset=self.dataset,
            prepare=functools.partial(self.dataset.prepare, config.data.augment),
            batch_size=train.batch_size,
            eval_batch_size=train.eval_batch_size,
            periods=Periods(
                self.total_steps, train.log_every, train.eval_every or self.epoch_steps, train.checkpoint_every
            ),
            average_from=max(0, self.total_steps - (train.average_steps or self.epoch_steps)),
            averaged=self.loss.averaged,
            hyperparameters=hyperparameters(config),
            cost=self.cost,
            shapes=self.state_shapes(),
            axes=self.axes,
            tpu_lanes_task=self._task(row_major_gradients),
            convolves=any(len(names) > 3 for names in self.axes.values()),  # more axes than layers, in, out
            gradient_dtype=config.mesh.gradient_dtype,
            measures=train.log_norms,
            stall_timeout_s=train.stall_timeout_s,
        )

    @property
    def loss(self) -> Loss:
        """Of the outputs."""
        return CrossEntropy(self.model)

    def _task(self, change: Callable[[optax.GradientTransformation], optax.GradientTransformation] = _same) -> Task:
        """The network as a task, whose optimizer is changed by ``change``."""
        own = hyperparameters(self.config)

        def network(hyper: Hyper) -> tuple[ModelFunctions, optax.GradientTransformation]:
            fields = {path: x for path, x in hyper.items() if path != SEED and x is not own[path]}
            if not fields:
                return our_functions(self.model), change(self.optimizer)
            changed = self.config.copy_and_resolve_references()
            with changed.ignore_type():  # values may be traced
                for path, value in fields.items():
                    set_field(changed, path, value)
            rule = make_parametrization(changed)
            optimizer = make_optimizer(changed, self.info, rule, self.total_steps)
            return our_functions(self.model.clone(parametrization=rule)), change(optimizer)

        return network_task(
            network,
            self.dataset.input_spec,
            self.loss,
            accumulate=self.config.train.accumulate,
            measure=(lambda **trees: norms(self.info, trees)) if self.config.train.log_norms else None,
        )

    def _updates(self) -> dict[str, Any]:
        """What `param_table` prints of the optimizer's direction."""
        name, kwargs = self.config.optimizer.name, optimizer_kwargs(self.config)
        if name == "muon":
            return {"degree": 0, "eps": kwargs.get("eps", 1e-8), "geometry": muon_geometry(self.info)}
        inner = direction(name, **kwargs)
        return {"degree": homogeneity(inner), "eps": direction_eps(name, **kwargs), "geometry": geometry_of(inner)}

    def state_shapes(self) -> TrainState:
        """A new training state with shapes and dtypes in place of arrays; computes nothing."""
        of = lambda variables: new_state(state_of(*without_boxes(variables), self.optimizer), self.loss.averaged)
        return jax.eval_shape(of, self.variables)

    def parameter_table(self) -> str:
        """`param_table` for the optimizer of this run; with the sharding, if ``config.mesh`` splits parameters."""
        optimizer = self.config.optimizer
        table = param_table(
            self.info,
            self.parametrization,
            **self._updates(),
            weight_decay=optimizer.weight_decay,
            decay_width_exponent=optimizer.decay_width_exponent,
            learning_rate=optimizer.learning_rate,
            epoch_steps=self.epoch_steps,
            frozen=optimizer.frozen,
        )
        mesh = AbstractMesh(tuple(max(1, self.config.mesh[axis]) for axis in MESH_AXES), MESH_AXES)
        if mesh.shape["fsdp"] * mesh.shape["tensor"] == 1:
            return table
        shapes = self.state_shapes().carry.params
        sharded = jax.tree.map(
            lambda x, place: x.update(sharding=place), shapes, state_shardings(shapes, self.axes, mesh)
        )
        return f"{table}\n\n{get_parameter_overview(sharded, include_stats='sharding')}"

    def description(self, mesh: Mesh) -> str:
        """Model, rule, data and devices, a line each, for the start of a run."""
        model, data, optimizer, rule = self.config.model, self.dataset, self.config.optimizer, self.parametrization
        place = "streamed" if data.placement == "stream" else "on the device"
        sizes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
        layout = f" ({sizes})" if mesh.shape["data"] != mesh.size else ""  # else devices only split the batch
        processes = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
        return (
            f"model  {model.name}, width {model.width} (base {model.base_width or model.width}), "
            f"depth {model.depth} (base {model.base_depth or model.depth}), {self.parameters:,} parameters\n"
            f"rule   {self.config.parametrization.preset}, alpha {rule.alpha:g}, gamma {rule.gamma:g}; "
            f"{optimizer.name}, learning rate {optimizer.learning_rate:g}\n"
            f"data   {data.name}, {data.train_size} train and {len(data.test):,} test {data.describe()}, {place}\n"
            f"run    {self.total_steps} steps of {self.config.train.batch_size} on {jax.device_count()} "
            f"{jax.devices()[0].device_kind} device(s){layout}{processes}"
        )


def build(config: ConfigDict, *, load: Callable[[ConfigDict], Dataset] = load) -> Experiment:
    """Checks ``config`` and builds what it describes; opens the data with ``load``, and trains nothing.

    Raises:
      InputError: a config, or data, that the user can correct.
    """
    validate(config)
    parametrization = make_parametrization(config)
    _require_optimizer(config, parametrization)
    new_model = functools.partial(create_model, parametrization=parametrization, **config.model)
    new_model(num_classes=1)  # refuses bad fields before the data are opened, which may take minutes
    dataset = load(config.data)
    _require_fit(config.model.name, dataset)
    model = new_model(num_classes=dataset.num_classes)
    variables = variable_shapes(model, dataset.input_spec)  # a deep network takes a second to trace
    shapes = variables["params"]
    is_base = model.base_width in (0, model.width)
    info = info_from_annotations(shapes, shapes if is_base else init_shapes(model.base(), dataset.input_spec))
    epoch_steps, total_steps = _steps(config.train, dataset)
    return Experiment(
        config=config,
        dataset=dataset,
        model=model,
        parametrization=parametrization,
        info=info,
        variables=variables,
        axes=axes_from_annotations(shapes),
        optimizer=make_optimizer(config, info, parametrization, total_steps),
        epoch_steps=epoch_steps,
        total_steps=total_steps,
    )


def hyperparameters(config: ConfigDict) -> dict[str, float]:
    """The seed and the fields of `CONTINUOUS` that are set, which runs of one compiled program may differ in."""
    fields = {path: get_field(config, path) for path in CONTINUOUS}
    whole = ("optimizer.warmup_steps",)
    values = {path: value if path in whole else float(value) for path, value in fields.items() if value is not None}
    return {SEED: config.seed, **values}


def _steps(train: ConfigDict, dataset: Dataset) -> tuple[int, int]:
    """Steps of an epoch and of the run; a tenth of a run without epochs counts as one."""
    of_epoch = steps_of_epoch(dataset.train, train.batch_size)
    if of_epoch is None and not train.steps:
        raise InputError(f"train.steps is 0: {dataset.name!r} gives batches without end. Set it, such as to 1000.")
    total = train.steps or max(1, math.ceil(min(train.epochs * (of_epoch or 0), 2.0**40)))
    if total >= 2**31:
        field = "steps" if train.steps else "epochs"
        raise InputError(f"train.{field} is {train[field]}: use fewer than 2^31 steps.")
    return of_epoch or math.ceil(total / 10), total


def _require_fit(name: str, dataset: Dataset) -> None:
    """The model must read what the data set holds."""
    plural = {"image": "images", "tokens": "tokens"}
    reads, holds = MODELS[name].input_kind, dataset.input_kind
    if holds == "arrays":
        raise InputError(
            f"model.name is {name!r}, which reads {plural[reads]}, but data.name is {dataset.name!r}, which holds "
            f"{dataset.describe()}: use a network of your own, or other data."
        )
    if reads != holds:
        fitting = " or ".join(repr(other) for other, model in MODELS.items() if model.input_kind == holds)
        raise InputError(
            f"model.name is {name!r}, which reads {plural[reads]}, but data.name is {dataset.name!r}, which holds "
            f"{plural[holds]}: use model.name = {fitting}, or other data."
        )
    if not dataset.num_classes:
        raise InputError(
            f"data.name is {dataset.name!r}: model.name {name!r} needs to know the number of classes, and targets that "
            "are streamed do not tell it. Set data.placement=device, or use a network of your own."
        )


def _require_optimizer(config: ConfigDict, parametrization: Parametrization) -> None:
    """Raises `InputError` unless there is such an optimizer with such arguments, which the rule covers."""
    name, kwargs = config.optimizer.name, optimizer_kwargs(config)
    if name != "muon":
        require_direction(direction(name, **kwargs), parametrization)
        return
    for argument in kwargs:
        if argument not in _MUON:
            raise InputError(f"optimizer.kwargs of 'muon' has {argument!r}; it takes {', '.join(_MUON)}.")
    muon(0.0, {}, Parametrization(), **{argument: value for argument, value in kwargs.items() if argument != "heads"})


# What a config may set in `muon`.
_MUON = ("beta", "nesterov", "ns_steps", "preconditioning", "consistent_rms", "b1", "b2", "eps", "heads")


def learning_rate(config: ConfigDict, total_steps: int | None) -> optax.Schedule:
    """Step, from 0 -> the learning rate of ``config.optimizer``; constant if ``total_steps`` is not given."""
    fields, fraction = config.optimizer, optax.constant_schedule(1.0)
    if total_steps is not None:
        fraction = warmup_schedule(fields.schedule, fields.warmup_steps, total_steps)
    return lambda step: fields.learning_rate * fraction(step)


def make_optimizer(
    config: ConfigDict, info: InfoTree, parametrization: Parametrization, total_steps: int | None = None
) -> optax.GradientTransformation:
    """The optimizer of ``config.optimizer``; with a constant learning rate if ``total_steps`` is not given."""
    fields, rate = config.optimizer, learning_rate(config, total_steps)
    clip = fields.clip_rms  # 0 turns clipping off, traced or not
    clip = clip or None if isinstance(clip, (int, float)) else jnp.where(clip == 0, jnp.inf, clip)
    options = {name: fields[name] for name in ("weight_decay", "decay_width_exponent")} | {"clip_rms": clip}
    kwargs = optimizer_kwargs(config)
    if fields.name == "muon":
        optimizer = muon(rate, info, parametrization, place=on_whole_matrices, **options, **kwargs)
    else:
        optimizer = depthmup(direction(fields.name, **kwargs), info, parametrization, rate, **options)
    return freeze(optimizer, info, fields.frozen) if fields.frozen else optimizer
