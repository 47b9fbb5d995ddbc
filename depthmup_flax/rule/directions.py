"""Optax directions by name, and what is known of any direction."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from depthmup_flax.errors import InputError, did_you_mean
from depthmup_flax.rule.parametrization import Parametrization, Scalar


def direction(name: str, **kwargs: Any) -> optax.GradientTransformation:
    """An entrywise optax direction by name; ``kwargs`` go to optax as they are.

    ``sgd`` (with an optional ``momentum``), ``momentum`` (0.9 unless given), ``adam``, ``adamw`` (the same: a
    direction has no decay), ``nadam``, ``adabelief``, ``adagrad``, ``rmsprop``, ``sign_sgd``, and ``<name>`` for
    every other ``optax.scale_by_<name>``: ``lion``, ``radam``, ``yogi``, ...

    Raises:
      InputError: no such direction, an argument it does not take, or one whose update of an entry depends on other
        entries (TP6 Definition 6.1 is about entrywise optimizers).
    """
    plain = all(value is None or isinstance(value, (bool, int, float)) for value in kwargs.values())
    if plain:
        return _direction_of_numbers(name, tuple(sorted(kwargs.items())))
    return _checked_direction(name, kwargs, measure=True)


@functools.cache
def _direction_of_numbers(name: str, kwargs: tuple[tuple[str, Any], ...]) -> optax.GradientTransformation:
    # Ours are entrywise with any numbers; it takes half a second to measure.
    return _checked_direction(name, dict(kwargs), measure=name not in DIRECTIONS)


def _checked_direction(name: str, kwargs: Mapping[str, Any], measure: bool) -> optax.GradientTransformation:
    make = _direction_factory(name)
    try:
        inner = make(**kwargs)
    except TypeError as error:
        takes = ", ".join(inspect.signature(make).parameters)
        raise InputError(f"optimizer.kwargs of {name!r}: {error}; it takes {takes or 'nothing'}.") from error
    if measure and not is_entrywise(inner):
        raise InputError(
            f"optimizer.name is {name!r}, whose update of an entry depends on other entries: the rule is for entrywise "
            "optimizers such as sgd, momentum, adam, lion or rmsprop."
        )
    return inner


def direction_eps(name: str, **kwargs: Any) -> float | None:
    """The epsilon that a direction adds to a gradient's size, ``None`` if it has none; for the printed table.

    Where optax adds it under the square root (rmsprop, adagrad), this is its square root.
    """
    parameters = inspect.signature(_direction_factory(name)).parameters
    if "eps" not in parameters:
        return None
    eps = kwargs.get("eps", parameters["eps"].default)
    in_sqrt = "eps_in_sqrt" in parameters and kwargs.get("eps_in_sqrt", parameters["eps_in_sqrt"].default)
    return math.sqrt(eps) if in_sqrt or name in ("adagrad", "rss") else eps


def homogeneity(inner: optax.GradientTransformation) -> float:
    """The power with which an optimizer's updates follow its gradients: 1 for SGD, 0 for Adam, Lion, RMSprop.

    Measured on the 100th update with a gradient of order one and its double, so it holds for any optax direction; NaN
    if there is no update to measure.
    """
    with jax.ensure_compile_time_eval():
        return _homogeneity(_probe(inner))


# Two entries that differ, so that an optimizer which only looks at ratios has something to look at.
_PROBE_GRADIENT = (1.0, -0.7)


def _probe(inner: optax.GradientTransformation) -> jax.Array:
    """(2, 2): the 100th update of two entries under a constant gradient, and under its double."""
    params = jnp.ones(2)

    def hundredth(scale: jax.Array) -> jax.Array:
        grads = scale * jnp.array(_PROBE_GRADIENT)

        def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
            update, state = inner.update(grads, carry[1], params)
            return (update, state), None

        return jax.lax.scan(step, (jnp.zeros(2), inner.init(params)), None, length=100)[0][0]

    return jax.jit(jax.vmap(hundredth))(jnp.array([1.0, 2.0]))


def _homogeneity(probe: jax.Array) -> float:
    once, twice = jnp.linalg.norm(probe, axis=1)
    return round(float(jnp.log2(twice / once)), 1) + 0.0


def is_entrywise(inner: optax.GradientTransformation) -> bool:
    """Whether an entry's first two updates depend on itself alone. Measured, with other entries changed."""

    def first_entry(others: float) -> jax.Array:
        # 128 x 128, from where on some optimizers factor their statistics.
        params = {"w": jnp.full((128, 128), others).at[0, 0].set(1.0)}
        state, updates = inner.init(params), []
        for size in (1.0, -0.3):
            grads = {"w": jnp.full((128, 128), others).at[0, 0].set(size)}
            update, state = inner.update(grads, state, params)
            updates.append(update["w"][0, 0])
        return jnp.stack(updates)

    try:
        with jax.ensure_compile_time_eval():
            # One program, which compiles faster than each operation by itself.
            return bool(jax.jit(lambda: jnp.allclose(first_entry(0.5), first_entry(2.0), rtol=1e-5))())
    except jax.errors.ConcretizationTypeError:  # a mapped momentum or beta: nothing to look at
        return True
    except TypeError:  # it wants more than gradients, such as the loss
        return False


def sgd_direction(momentum: Scalar | None = None, nesterov: bool = False) -> optax.GradientTransformation:
    """``optax.identity()``, or ``optax.trace`` with momentum."""
    if momentum is None and nesterov:
        raise InputError("nesterov is set but momentum is not: give a momentum, such as 0.9.")
    return optax.identity() if momentum is None else optax.trace(momentum, nesterov)


def _momentum_direction(momentum: Scalar = 0.9, nesterov: bool = False) -> optax.GradientTransformation:
    return optax.trace(momentum, nesterov)


# The names that differ from optax's ``scale_by_<name>``.
# All are entrywise; a test measures it, with their defaults.
DIRECTIONS: Mapping[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": sgd_direction,
    "momentum": _momentum_direction,
    "adam": optax.scale_by_adam,
    "adamw": optax.scale_by_adam,
    "nadam": functools.partial(optax.scale_by_adam, nesterov=True),
    "adabelief": optax.scale_by_belief,
    "adagrad": optax.scale_by_rss,
    "rmsprop": optax.scale_by_rms,
    "sign_sgd": optax.scale_by_sign,
}


def _direction_factory(name: str) -> Callable[..., optax.GradientTransformation]:
    prefix = "scale_by_"
    make = DIRECTIONS.get(name) or getattr(optax, prefix + str(name), None)
    not_directions = {"learning_rate", "schedule"}
    if make is None or name in not_directions:
        known = {*DIRECTIONS, *(n.removeprefix(prefix) for n in dir(optax) if n.startswith(prefix))} - not_directions
        raise InputError(f"optimizer.name is {name!r}: {did_you_mean(name, known)}")
    return make


def require_direction(inner: optax.GradientTransformation, parametrization: Parametrization) -> None:
    """``inner`` must be a direction, and its updates normalized if the parametrization asks for that.

    Raises:
      InputError: ``inner`` steps downhill already (a finished optimizer), or follows the gradient's size.
    """
    if not isinstance(parametrization, Parametrization):
        raise InputError(f"parametrization is {parametrization!r}: use depthmup_flax.get_parametrization(name).")
    try:
        with jax.ensure_compile_time_eval():
            probe = _probe(inner)
            finished = bool(jnp.vdot(probe[0], jnp.array(_PROBE_GRADIENT)) < 0)
            linear = not _homogeneity(probe) <= 0.5
    except (jax.errors.ConcretizationTypeError, TypeError):  # a mapped hyperparameter, or one that wants the loss
        return
    if finished:
        raise InputError(
            "inner is a finished optimizer, which steps downhill by its own learning rate: pass the direction alone, "
            "such as optax.scale_by_adam() for optax.adam(...) or optax.trace(0.9) for optax.sgd(..., momentum=0.9)."
        )
    if linear and parametrization.normalized_updates_only:
        refuse_linear(parametrization)


def refuse_linear(parametrization: Parametrization) -> None:
    """Raises the `InputError` of a parametrization that is for Adam-like optimizers alone."""
    alpha, gamma = parametrization.alpha, parametrization.gamma
    raise InputError(
        f"this parametrization (alpha={alpha:g}, gamma={gamma:g}) scales only the block and is for Adam-like "
        f"optimizers: with SGD its learning rate would grow as r^{alpha - gamma:g} and be unstable, and scaling only "
        "the block with SGD is 'depth_mup' already; use parametrization.preset='depth_mup' or an Adam-like optimizer."
    )
