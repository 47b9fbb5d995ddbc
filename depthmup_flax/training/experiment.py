"""From a config to the objects of a run: data, model, rule, optimizer. Bad input fails here, before compilation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from depthmup_flax.data import Dataset, load, steps_per_epoch
from depthmup_flax.errors import InputError
from depthmup_flax.models import MODELS, create_model
from depthmup_flax.rule.annotations import AxisNames
from depthmup_flax.rule.directions import direction, direction_eps, homogeneity, require_direction
from depthmup_flax.rule.info_trees import param_count
from depthmup_flax.rule.optimizer import depthmup, freeze, warmup_schedule
from depthmup_flax.rule.param_table import param_table
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.rule.roles import axes_from_annotations, info_from_annotations, init_shapes
from depthmup_flax.training.config import make_parametrization, optimizer_kwargs, set_field, validate
from depthmup_flax.training.step import TrainState, init_state


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What a validated config stands for.

    Attributes:
      config: the resolved config.
      dataset: train and test split.
      model: the Flax module; called with what ``dataset.prepare`` gives.
      parametrization: the rule.
      info: tree of `ParamInfo` with the structure of the model's parameters.
      axes: path of a parameter -> its logical axes.
      optimizer: finished optax transformation.
      epoch_steps: training steps in an epoch.
      total_steps: training steps in the run.
    """

    config: ConfigDict
    dataset: Dataset
    model: nn.Module
    parametrization: Parametrization
    info: Any
    axes: dict[str, AxisNames]
    optimizer: optax.GradientTransformation
    epoch_steps: int
    total_steps: int

    @property
    def parameters(self) -> int:
        """Numbers in the model's parameters."""
        return param_count(self.info)

    @property
    def cost(self) -> float:
        """Parameters times steps times examples in a batch: proportional to a run's work in a family of networks."""
        return float(self.parameters) * self.total_steps * self.config.train.batch_size

    def init_state(self) -> TrainState:
        """A fresh training state; pure, as `depthmup_flax.training.step.init_state` is."""
        return init_state(self.model, self.optimizer, self.config.seed, self.dataset.input_spec)

    def state_shapes(self) -> Any:
        """Shapes and types of `init_state`; computes nothing."""
        return jax.eval_shape(self.init_state)

    def parameter_table(self) -> str:
        """`param_table` for the optimizer of this run."""
        optimizer = self.config.optimizer
        name, kwargs = optimizer.name, optimizer_kwargs(self.config)
        return param_table(
            self.info,
            self.parametrization,
            degree=homogeneity(direction(name, **kwargs)),
            eps=direction_eps(name, **kwargs),
            weight_decay=optimizer.weight_decay,
            frozen=optimizer.frozen,
        )


def build(config: ConfigDict, *, load: Callable[[ConfigDict], Dataset] = load) -> Experiment:
    """Checks ``config`` and builds what it describes; opens the data with ``load``, computes nothing on it.

    Raises:
      InputError: anything a user can put right, in one sentence.
    """
    validate(config)
    parametrization = make_parametrization(config)
    inner = direction(config.optimizer.name, **optimizer_kwargs(config))
    require_direction(inner, parametrization)
    # The model's own checks come before the data, which may take a while to load; classes are not known yet.
    create_model(num_classes=1, parametrization=parametrization, **config.model)
    dataset = load(config.data)
    _require_fit(config.model.name, dataset)
    model = create_model(num_classes=dataset.num_classes, parametrization=parametrization, **config.model)
    # The shapes of a deep network take a second to trace, so once.
    shapes = init_shapes(model, dataset.input_spec)
    is_base = model.base_width in (0, model.width)
    info = info_from_annotations(shapes, shapes if is_base else init_shapes(model.base(), dataset.input_spec))
    epoch_steps = steps_per_epoch(len(dataset.train), config.train.batch_size)
    total_steps = config.train.steps or max(1, math.ceil(min(config.train.epochs * epoch_steps, 2.0**40)))
    if total_steps >= 2**31:
        raise InputError(f"train.epochs or train.steps asks for {total_steps} steps: use fewer than 2^31.")
    return Experiment(
        config=config,
        dataset=dataset,
        model=model,
        parametrization=parametrization,
        info=info,
        axes=axes_from_annotations(shapes),
        optimizer=make_optimizer(config, info, parametrization, _schedule(config, total_steps)),
        epoch_steps=epoch_steps,
        total_steps=total_steps,
    )


def traced_parts(
    experiment: Experiment, values: Mapping[str, Any]
) -> tuple[nn.Module, optax.GradientTransformationExtraArgs | optax.GradientTransformation]:
    """Model and optimizer of ``experiment`` with other values of continuous fields, which may be traced.

    Args:
      experiment: gives shapes, roles and everything else.
      values: dotted field -> number or traced scalar, such as ``{"optimizer.learning_rate": eta}``.
    """
    config = experiment.config.copy_and_resolve_references()
    with config.ignore_type():
        for path, value in values.items():
            set_field(config, path, value)
    rule = make_parametrization(config)
    schedule = _schedule(config, experiment.total_steps)
    model = experiment.model.clone(parametrization=rule)
    return model, make_optimizer(config, experiment.info, rule, schedule)


def _clip(clip_rms: Any) -> Any:
    """0 is off; a traced 0, too."""
    if isinstance(clip_rms, (int, float)):
        return clip_rms or None
    return jnp.where(clip_rms == 0, jnp.inf, clip_rms)


def _schedule(config: ConfigDict, total_steps: int) -> optax.Schedule:
    return warmup_schedule(config.optimizer.schedule, config.optimizer.warmup_steps, total_steps)


def _require_fit(name: str, dataset: Dataset) -> None:
    """The model must read what the data set holds."""
    reads, holds = MODELS[name].input_kind, dataset.input_kind
    if reads != holds:
        plural = {"image": "images", "tokens": "tokens"}
        fitting = " or ".join(repr(other) for other, model in MODELS.items() if model.input_kind == holds)
        raise InputError(
            f"model.name is {name!r}, which reads {plural[reads]}, but data.name is {dataset.name!r}, which holds "
            f"{plural[holds]}: use model.name = {fitting}, or other data."
        )


def make_optimizer(
    config: ConfigDict, info: Any, parametrization: Parametrization, schedule: optax.Schedule | None = None
) -> optax.GradientTransformation:
    """The optimizer that ``config.optimizer`` names.

    Args:
      config: the whole config.
      info: tree of `ParamInfo`.
      parametrization: the rule.
      schedule: step -> fraction of the learning rate; ``None`` is 1 throughout.
    """
    kwargs = optimizer_kwargs(config)
    config = config.optimizer
    fraction = schedule or optax.constant_schedule(1.0)
    optimizer = depthmup(
        direction(config.name, **kwargs),
        info,
        parametrization,
        lambda step: config.learning_rate * fraction(step),
        weight_decay=config.weight_decay,
        clip_rms=_clip(config.clip_rms),
    )
    return freeze(optimizer, info, config.frozen) if config.frozen else optimizer
