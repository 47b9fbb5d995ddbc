"""The optimizer of a config, and the check that the rule covers it."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from depthmup_flax.config.fields import optimizer_kwargs
from depthmup_flax.devices.parallel.sharding import on_whole_matrices
from depthmup_flax.rule.directions import direction
from depthmup_flax.rule.muon import muon
from depthmup_flax.rule.optimizer import depthmup, freeze, warmup_schedule
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.rule.traits import require_direction
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import InfoTree


def require_optimizer(config: ConfigDict, parametrization: Parametrization) -> None:
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
