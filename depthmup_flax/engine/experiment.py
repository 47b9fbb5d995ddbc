"""From a config to the objects of a run: data, model, rule, optimizer. Bad input fails here, before compilation."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from clu.parameter_overview import get_parameter_overview
from jax.sharding import AbstractMesh, Mesh
from ml_collections import ConfigDict

from depthmup_flax.config.fields import make_parametrization, optimizer_kwargs, set_field, validate
from depthmup_flax.data import Dataset, load, steps_per_epoch
from depthmup_flax.engine.step import TrainState, init_state, state_of
from depthmup_flax.models import MODELS, create_model
from depthmup_flax.parallel.sharding import MESH_AXES, on_whole_matrices, state_shardings
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
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, InfoTree, Scalar


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

    def init_state(self) -> TrainState:
        """A new training state; pure, as `depthmup_flax.engine.step.init_state` is."""
        return init_state(self.model, self.optimizer, self.config.seed, self.dataset.input_spec)

    def _updates(self) -> dict[str, Any]:
        """What `param_table` prints of the optimizer's direction."""
        name, kwargs = self.config.optimizer.name, optimizer_kwargs(self.config)
        if name == "muon":
            return {"degree": 0, "eps": kwargs.get("eps", 1e-8), "geometry": muon_geometry(self.info)}
        inner = direction(name, **kwargs)
        return {"degree": homogeneity(inner), "eps": direction_eps(name, **kwargs), "geometry": geometry_of(inner)}

    @property
    def convolves(self) -> bool:
        """Whether the network has convolutions: a parameter has more axes than layers, in, out."""
        return any(len(names) > 3 for names in self.axes.values())

    def state_shapes(self) -> TrainState:
        """`init_state` with shapes and dtypes in place of arrays; computes nothing."""
        return jax.eval_shape(functools.partial(state_of, optimizer=self.optimizer), self.variables)

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
        shapes = self.state_shapes().params
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
            f"data   {data.name}, {len(data.train):,} train and {len(data.test):,} test {data.describe()}, {place}\n"
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
    epoch_steps = steps_per_epoch(len(dataset.train), config.train.batch_size)
    total_steps = config.train.steps or max(1, math.ceil(min(config.train.epochs * epoch_steps, 2.0**40)))
    if total_steps >= 2**31:
        field = "steps" if config.train.steps else "epochs"
        raise InputError(f"train.{field} is {config.train[field]}: use fewer than 2^31 steps.")
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


def traced(experiment: Experiment, values: Mapping[str, Scalar]) -> tuple[nn.Module, optax.GradientTransformation]:
    """The model and optimizer of ``experiment`` with other values of continuous fields.

    ``values``: dotted field -> number or traced scalar, such as ``{"optimizer.learning_rate": eta}``.
    """
    config = experiment.config.copy_and_resolve_references()
    with config.ignore_type():
        for path, value in values.items():
            set_field(config, path, value)
    rule = make_parametrization(config)
    model = experiment.model.clone(parametrization=rule)
    return model, make_optimizer(config, experiment.info, rule, experiment.total_steps)


def _require_fit(name: str, dataset: Dataset) -> None:
    """The model must read what the data set holds."""
    plural = {"image": "images", "tokens": "tokens"}
    reads, holds = MODELS[name].input_kind, dataset.input_kind
    if reads != holds:
        fitting = " or ".join(repr(other) for other, model in MODELS.items() if model.input_kind == holds)
        raise InputError(
            f"model.name is {name!r}, which reads {plural[reads]}, but data.name is {dataset.name!r}, which holds "
            f"{plural[holds]}: use model.name = {fitting}, or other data."
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


def make_optimizer(
    config: ConfigDict, info: InfoTree, parametrization: Parametrization, total_steps: int | None = None
) -> optax.GradientTransformation:
    """The optimizer of ``config.optimizer``; with a constant learning rate if ``total_steps`` is not given."""
    fields, fraction = config.optimizer, optax.constant_schedule(1.0)
    if total_steps is not None:
        fraction = warmup_schedule(fields.schedule, fields.warmup_steps, total_steps)
    clip = fields.clip_rms  # 0 turns clipping off, traced or not
    clip = clip or None if isinstance(clip, (int, float)) else jnp.where(clip == 0, jnp.inf, clip)
    rate = lambda step: fields.learning_rate * fraction(step)
    options = {name: fields[name] for name in ("weight_decay", "decay_width_exponent")} | {"clip_rms": clip}
    kwargs = optimizer_kwargs(config)
    if fields.name == "muon":
        optimizer = muon(rate, info, parametrization, place=on_whole_matrices, **options, **kwargs)
    else:
        optimizer = depthmup(direction(fields.name, **kwargs), info, parametrization, rate, **options)
    return freeze(optimizer, info, fields.frozen) if fields.frozen else optimizer
