"""Learning-rate schedules by name: warm-up, then a fraction of the rate at every step."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from depthmup_flax.networks.import_paths import is_import_path, resolve
from depthmup_flax.util.errors import InputError, did_you_mean

# Name -> what is left of the rate, of the part of the decay that is done, from 0 to 1.
# sqrt: 1 - sqrt(x), the best of the shapes that arXiv:2405.18392 compares.
SHAPES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: 0.5 * (1 + jnp.cos(jnp.pi * done)),
    "sqrt": lambda done: 1 - jnp.sqrt(done),
}
NAMES = ("constant", "cosine", "linear", "wsd", "rsqrt")


def fraction(fields: ConfigDict, total_steps: int) -> optax.Schedule:
    """Step, from 0 -> the fraction of eta that ``config.optimizer`` describes; its numbers may be traced.

    Raises:
      InputError: ``warmup_steps`` leave no step, or ``schedule`` is an import path that cannot be imported.
    """
    warmup, kind = fields.warmup_steps, fields.schedule
    if isinstance(warmup, int) and warmup >= total_steps:
        raise InputError(f"optimizer.warmup_steps is {warmup}: use fewer than the {total_steps} training steps.")
    if is_import_path(kind):
        after = resolve(kind, "optimizer.schedule", "my_package.schedules:stepwise")(total_steps)
        if not callable(after):
            raise InputError(
                f"optimizer.schedule {kind!r} returns {type(after).__name__}: return a function of the step."
            )
    else:
        after = _named(fields, total_steps)

    def at(step: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(step)
        return jnp.where(step < warmup, step / jnp.maximum(warmup, 1), after(step))

    return at


def _named(fields: ConfigDict, total_steps: int) -> Callable[[jax.Array], jax.Array]:
    """What follows the warm-up."""
    kind, warmup = fields.schedule, fields.warmup_steps
    if kind == "constant":
        return jnp.ones_like
    if kind == "rsqrt":  # of the step over the warm-up, as in arXiv:1706.03762
        return lambda step: jnp.sqrt(jnp.maximum(warmup, 1) / jnp.maximum(step, 1))
    is_wsd = kind == "wsd"
    shape = fields.decay_shape if is_wsd else kind
    # A longer warm-up moves the start, else the rate would jump where the warm-up ends.
    start = jnp.maximum(warmup, (1 - fields.decay_fraction) * total_steps) if is_wsd else warmup

    def decayed(step: jax.Array) -> jax.Array:
        done = jnp.clip((step - start) / (total_steps - start), 0, 1)
        return fields.final_fraction + (1 - fields.final_fraction) * SHAPES[shape](done)

    return decayed


def require_schedule(fields: ConfigDict) -> None:
    """Raises `InputError` for fields of ``config.optimizer`` that name no schedule."""
    if fields.schedule not in NAMES and not is_import_path(fields.schedule):
        meant = did_you_mean(fields.schedule, NAMES)
        raise InputError(f"optimizer.schedule is {fields.schedule!r}: {meant} Yours has a path, my_package.lr:steps.")
    if fields.decay_shape not in SHAPES:
        raise InputError(f"optimizer.decay_shape is {fields.decay_shape!r}: {did_you_mean(fields.decay_shape, SHAPES)}")
    for name, lowest in (("decay_fraction", "above 0"), ("final_fraction", "from 0")):
        value = fields[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value <= 1 or (lowest == "above 0" and value == 0):
            raise InputError(f"optimizer.{name} is {value!r}: use a number {lowest} to 1.")
