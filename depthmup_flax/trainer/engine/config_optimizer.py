"""The optimizer that a config names: an optax direction under the rule, or Muon; all that depends on which it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config
from depthmup_flax.devices.sharding import on_whole_matrices
from depthmup_flax.networks.import_paths import is_import_path, resolve
from depthmup_flax.networks.user_code import calling
from depthmup_flax.rule.direction_traits import geometry_of, homogeneity, require_direction
from depthmup_flax.rule.directions import direction, direction_eps
from depthmup_flax.rule.hyperball import adamh, muonh
from depthmup_flax.rule.muon import geometry_by_role, muon
from depthmup_flax.rule.optimizer import depthmup, freeze
from depthmup_flax.rule.parametrization import Geometry, Parametrization
from depthmup_flax.trainer.engine import schedules
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import InfoTree


def require_optimizer(config: ConfigDict, rule: Parametrization) -> None:
    """Raises `InputError` unless there is such an optimizer with such arguments, which the rule covers."""
    schedules.require_schedule(config.optimizer)
    name, kwargs = config.optimizer.name, optimizer_kwargs(config)
    if (of_parameters := _of_parameters(name)) is None:
        require_direction(direction(name, **kwargs), rule)
        return
    takes = inspect.signature(of_parameters).parameters
    if not _takes_any(of_parameters):
        if lacking := [argument for argument in _GIVEN if argument not in takes]:
            raise InputError(f"optimizer.name is {name!r}: it takes no {lacking[0]!r}. Take {', '.join(_GIVEN)}.")
        own = [argument for argument in takes if argument not in (*_GIVEN, "place", *_OPTIONS)]
        for argument in kwargs:
            if argument not in own:
                raise InputError(f"optimizer.kwargs of {name!r} has {argument!r}; it takes {', '.join(own) or 'none'}.")
        for option in _OPTIONS:
            if config.optimizer[option] and option not in takes:
                raise InputError(f"optimizer.{option} is set, and {name!r} takes none: use 0.")
    if name in _OF_MATRICES:
        of_parameters(0.0, {}, Parametrization(), **kwargs)


_KWARGS = frozenset(default_config().optimizer.kwargs)
_GIVEN = ("learning_rate", "info", "rule")
_OPTIONS = ("weight_decay", "decay_width_exponent", "clip_rms")
# Optimizers that need to know the parameters.
_OF_MATRICES: dict[str, Callable[..., optax.GradientTransformation]] = {"muon": muon, "adamh": adamh, "muonh": muonh}
OF_NORMS = ("adamh", "muonh")  # whose matrices keep the norm with which they start


def optimizer_kwargs(config: ConfigDict) -> dict[str, Any]:
    """The fields of ``config.optimizer.kwargs`` that are set; those that a config file added may be ``None``."""
    kwargs = config.optimizer.kwargs.to_dict()
    return {name: value for name, value in kwargs.items() if value is not None or name not in _KWARGS}


def _of_parameters(name: str) -> Callable[..., optax.GradientTransformation] | None:
    """Ours, or the user's, that is made for parameters; ``None`` for a direction."""
    if is_import_path(name):
        return resolve(name, "optimizer.name", "my_package.optimizers:chain")
    return _OF_MATRICES.get(name)


def _takes_any(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def learning_rate(config: ConfigDict, total_steps: int | None) -> optax.Schedule:
    """Step, from 0 -> the learning rate of ``config.optimizer``; constant if ``total_steps`` is not given."""
    fields, fraction = config.optimizer, optax.constant_schedule(1.0)
    if total_steps is not None:
        fraction = schedules.fraction(fields, total_steps)
    return lambda step: fields.learning_rate * fraction(step)


def make_optimizer(
    config: ConfigDict, info: InfoTree, rule: Parametrization, total_steps: int | None = None
) -> optax.GradientTransformation:
    """The optimizer of ``config.optimizer``; with a constant learning rate if ``total_steps`` is not given."""
    fields, rate = config.optimizer, learning_rate(config, total_steps)
    clip = fields.clip_rms  # 0 turns clipping off, traced or not
    clip = clip or None if isinstance(clip, (int, float)) else jnp.where(clip == 0, jnp.inf, clip)
    options = {name: fields[name] for name in _OPTIONS} | {"clip_rms": clip}
    kwargs = optimizer_kwargs(config)
    if (of_parameters := _of_parameters(fields.name)) is not None:
        takes = inspect.signature(of_parameters).parameters
        given = options if is_import_path(fields.name) else {**options, "place": on_whole_matrices}
        kwargs |= {name: x for name, x in given.items() if name in takes or _takes_any(of_parameters)}
        with calling(f"{fields.name}(info, rule, learning_rate)"):
            optimizer = of_parameters(info=info, rule=rule, learning_rate=rate, **kwargs)
    else:
        optimizer = depthmup(direction(fields.name, **kwargs), info, rule, rate, **options)
    return freeze(optimizer, info, fields.frozen) if fields.frozen else optimizer


def update_facts(config: ConfigDict, info: InfoTree) -> dict[str, Any]:
    """``degree``, ``eps`` and ``geometry`` of the updates, for `param_table`."""
    name, kwargs = config.optimizer.name, optimizer_kwargs(config)
    if is_import_path(name):
        return {"degree": None}
    if name in _OF_MATRICES:
        geometry = Geometry.NORM_MATCHED if name == "adamh" else Geometry.ORTHOGONAL
        return {"degree": 0, "eps": kwargs.get("eps", 1e-8), "geometry": geometry_by_role(info, geometry)}
    inner = direction(name, **kwargs)
    return {"degree": homogeneity(inner), "eps": direction_eps(name, **kwargs), "geometry": geometry_of(inner)}
