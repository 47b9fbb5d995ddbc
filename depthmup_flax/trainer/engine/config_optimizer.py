"""The optimizer that a config names: an optax direction under the rule, or Muon; all that depends on which it is."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from depthmup_flax.config.fields import optimizer_kwargs
from depthmup_flax.devices.sharding import on_whole_matrices
from depthmup_flax.rule.direction_traits import geometry_of, homogeneity, require_direction
from depthmup_flax.rule.directions import direction, direction_eps
from depthmup_flax.rule.muon import muon, muon_geometry
from depthmup_flax.rule.optimizer import depthmup, freeze, warmup_schedule
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import InfoTree


def require_optimizer(config: ConfigDict, rule: Parametrization) -> None:
    """Raises `InputError` unless there is such an optimizer with such arguments, which the rule covers."""
    name, kwargs = config.optimizer.name, optimizer_kwargs(config)
    if name != "muon":
        require_direction(direction(name, **kwargs), rule)
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
    config: ConfigDict, info: InfoTree, rule: Parametrization, total_steps: int | None = None
) -> optax.GradientTransformation:
    """The optimizer of ``config.optimizer``; with a constant learning rate if ``total_steps`` is not given."""
    fields, rate = config.optimizer, learning_rate(config, total_steps)
    clip = fields.clip_rms  # 0 turns clipping off, traced or not
    clip = clip or None if isinstance(clip, (int, float)) else jnp.where(clip == 0, jnp.inf, clip)
    options = {name: fields[name] for name in ("weight_decay", "decay_width_exponent")} | {"clip_rms": clip}
    kwargs = optimizer_kwargs(config)
    if fields.name == "muon":
        optimizer = muon(rate, info, rule, place=on_whole_matrices, **options, **kwargs)
    else:
        optimizer = depthmup(direction(fields.name, **kwargs), info, rule, rate, **options)
    return freeze(optimizer, info, fields.frozen) if fields.frozen else optimizer


def update_facts(config: ConfigDict, info: InfoTree) -> dict[str, Any]:
    """``degree``, ``eps`` and ``geometry`` of the updates, for `param_table`."""
    name, kwargs = config.optimizer.name, optimizer_kwargs(config)
    if name == "muon":
        return {"degree": 0, "eps": kwargs.get("eps", 1e-8), "geometry": muon_geometry(info)}
    inner = direction(name, **kwargs)
    return {"degree": homogeneity(inner), "eps": direction_eps(name, **kwargs), "geometry": geometry_of(inner)}
