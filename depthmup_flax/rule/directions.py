"""Optax directions by name: transformations without learning rate or decay, as a configuration names them."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import optax

from depthmup_flax.rule.direction_traits import described, require_direction
from depthmup_flax.rule.optimizer import require_ranges, sgd_direction
from depthmup_flax.rule.parametrization import PRESETS, Geometry
from depthmup_flax.util.errors import InputError, did_you_mean
from depthmup_flax.util.types import Scalar


def lamb_direction(
    b1: Scalar = 0.9, b2: Scalar = 0.999, eps: Scalar = 1e-6, eps_root: Scalar = 0.0
) -> optax.GradientTransformation:
    """``optax.lamb`` without learning rate and decay."""
    return optax.chain(optax.scale_by_adam(b1, b2, eps, eps_root), optax.scale_by_trust_ratio())


def lars_direction(
    momentum: Scalar = 0.9, nesterov: bool = False, trust_coefficient: Scalar = 0.001, eps: float = 0.0
) -> optax.GradientTransformation:
    """``optax.lars`` without learning rate and decay."""
    return optax.chain(
        optax.scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps), optax.trace(momentum, nesterov)
    )


def adafactor_direction(**kwargs: Any) -> optax.GradientTransformation:
    """``optax.adafactor`` without learning rate and decay; ``kwargs`` are of ``optax.scale_by_factored_rms``."""
    normalized = optax.chain(optax.scale_by_factored_rms(**kwargs), optax.clip_by_block_rms(1.0))
    return optax.chain(normalized, optax.scale_by_param_block_rms())


# Names of directions that differ from optax's ``scale_by_<name>``.
DIRECTIONS: Mapping[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": sgd_direction,
    "momentum": functools.partial(sgd_direction, momentum=0.9),
    "adam": optax.scale_by_adam,
    "adamw": optax.scale_by_adam,
    "nadam": functools.partial(optax.scale_by_adam, nesterov=True),
    "adabelief": optax.scale_by_belief,
    "adagrad": optax.scale_by_rss,
    "rmsprop": optax.scale_by_rms,
    "sign_sgd": optax.scale_by_sign,
    "lamb": lamb_direction,
    "lars": lars_direction,
    "adafactor": adafactor_direction,
}


# The power with which updates follow gradients, by name; of `DIRECTIONS` and of optax's ``scale_by_<name>``.
_DEGREES: Mapping[str, int] = {
    **dict.fromkeys(("sgd", "momentum", "optimistic_gradient"), 1),
    **dict.fromkeys(("adam", "adamw", "nadam", "adabelief", "adagrad", "rmsprop", "sign_sgd"), 0),
    **dict.fromkeys(("lamb", "lars", "adafactor", "trust_ratio", "factored_rms"), 0),
    **dict.fromkeys(("adadelta", "adamax", "adan", "amsgrad", "belief", "lion", "radam", "rms"), 0),
    **dict.fromkeys(("rprop", "rss", "sign", "stddev", "yogi"), 0),
}
_NORM_MATCHED = ("lamb", "lars", "adafactor", "trust_ratio")
# They only multiply updates by the size of the weights, as the last part of adafactor.
_NO_DIRECTIONS = ("param_block_rms", "param_block_norm", "polyak")


def direction(name: str, **kwargs: Any) -> optax.GradientTransformation:
    """An optax direction by name; ``kwargs`` go to optax as they are.

    Names are those of `DIRECTIONS`, and ``<name>`` for every other ``optax.scale_by_<name>``: ``lion``, ``radam``, ...
    Muon, which needs to know the parameters, is `depthmup_flax.muon`. One of a later optax is read by `depthmup`.

    Raises:
      InputError: there is no such direction, it does not take an argument, or the rule does not cover it.
    """
    factory = direction_factory(name)
    require_ranges(kwargs, "optimizer.kwargs.")
    try:
        inner = factory(**kwargs)
    except TypeError as error:
        takes = ", ".join(inspect.signature(factory).parameters)
        raise InputError(f"optimizer.kwargs of {name!r}: {error}; it takes {takes or 'nothing'}.") from error
    if name in _DEGREES:
        return described(inner, _DEGREES[name], _geometry(name))
    if name in _NO_DIRECTIONS:
        raise InputError(f"optimizer.name is {name!r}: it is no direction of its own. Use, for example, adafactor.")
    try:
        require_direction(inner, PRESETS["depth_mup"])
    except InputError as error:
        raise InputError(f"optimizer.name is {name!r}: {error}") from error
    return inner


def _geometry(name: str) -> Geometry:
    if name in _NORM_MATCHED:
        return Geometry.NORM_MATCHED
    return Geometry.SIGN if _DEGREES[name] == 0 else Geometry.LINEAR


def direction_eps(name: str, **kwargs: Any) -> float | None:
    """The epsilon that a direction adds to a gradient's size, ``None`` if it has none; for the printed table.

    Where optax adds it under the square root (rmsprop, adagrad), it is the square root.
    """
    parameters = inspect.signature(direction_factory(name)).parameters
    if "eps" not in parameters:
        return None
    eps = kwargs.get("eps", parameters["eps"].default)
    in_sqrt = "eps_in_sqrt" in parameters and kwargs.get("eps_in_sqrt", parameters["eps_in_sqrt"].default)
    return math.sqrt(eps) if in_sqrt or name in ("adagrad", "rss") else eps


def direction_factory(name: str) -> Callable[..., optax.GradientTransformation]:
    """The function that makes a `direction`; `InputError` if there is none of this name."""
    prefix = "scale_by_"
    optax_names = {n.removeprefix(prefix) for n in dir(optax) if n.startswith(prefix)} - {"learning_rate", "schedule"}
    factory = DIRECTIONS.get(name) or (getattr(optax, prefix + name) if name in optax_names else None)
    if factory is None:
        raise InputError(f"optimizer.name is {name!r}: {did_you_mean(name, {*DIRECTIONS, *_DEGREES})}")
    return factory
