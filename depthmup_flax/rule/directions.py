"""Optax directions by name, and what is known of any direction without running it.

A *direction* is an optax transformation without learning rate or decay: ``optax.scale_by_adam()``,
``optax.trace(0.9)``. `TRAITS` lists optax's own. The parts of a composed transformation (``chain``, ``masked``,
``partition``, ``inject_hyperparams``, ...) are read from the functions that its ``update`` closes over: nothing is
traced or compiled.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from depthmup_flax.errors import InputError, did_you_mean
from depthmup_flax.rule.parametrization import Parametrization
from depthmup_flax.types import ArrayTree, Scalar


@dataclasses.dataclass(frozen=True)
class Traits:
    """Properties of a transformation's update."""

    degree: int  # the power with which it follows the gradients: 1 for SGD, 0 for Adam (epsilon aside)
    entrywise: bool = True  # each entry depends on its own gradients alone, as TP6 Definition 6.1 requires


# The function that makes an optax transformation -> its traits. Tests measure every row.
TRAITS: Mapping[str, Traits] = {
    **dict.fromkeys(("identity", "trace", "ema", "scale", "scale_by_schedule"), Traits(degree=1)),
    **dict.fromkeys(("scale_by_optimistic_gradient", "add_decayed_weights", "apply_every"), Traits(degree=1)),
    **dict.fromkeys(("clip", "zero_nans"), Traits(degree=1)),  # below the threshold of clip
    **dict.fromkeys(("clip_by_global_norm", "clip_by_block_rms", "centralize"), Traits(degree=1, entrywise=False)),
    **dict.fromkeys(("scale_by_adam", "scale_by_amsgrad", "scale_by_adamax", "scale_by_radam"), Traits(degree=0)),
    **dict.fromkeys(("scale_by_adan", "scale_by_belief", "scale_by_yogi", "scale_by_lion"), Traits(degree=0)),
    **dict.fromkeys(("scale_by_rms", "scale_by_stddev", "scale_by_rss", "scale_by_adadelta"), Traits(degree=0)),
    **dict.fromkeys(("scale_by_rprop", "scale_by_sign"), Traits(degree=0)),
    **dict.fromkeys(("scale_by_param_block_norm", "scale_by_param_block_rms"), Traits(degree=1, entrywise=False)),
    **dict.fromkeys(("scale_by_trust_ratio", "scale_by_sm3", "scale_by_novograd"), Traits(degree=0, entrywise=False)),
    **dict.fromkeys(("scale_by_factored_rms", "scale_by_muon"), Traits(degree=0, entrywise=False)),
    **dict.fromkeys(("scale_by_distance_over_gradients", "scale_by_lbfgs"), Traits(degree=0, entrywise=False)),
    **dict.fromkeys(("scale_by_polyak", "normalize_by_update_norm"), Traits(degree=0, entrywise=False)),
}


def sgd_direction(momentum: Scalar | None = None, nesterov: bool = False) -> optax.GradientTransformation:
    """The gradient itself, or its running sum if ``momentum`` is given."""
    if momentum is None and nesterov:
        raise InputError("nesterov is set but momentum is not: give a momentum, such as 0.9.")
    return optax.identity() if momentum is None else optax.trace(momentum, nesterov)


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
}


def direction(name: str, **kwargs: Any) -> optax.GradientTransformation:
    """An entrywise optax direction by name; ``kwargs`` go to optax as they are.

    ``sgd`` (with an optional ``momentum``), ``momentum`` (0.9 by default), the other names of `DIRECTIONS`, and
    ``<name>`` for every other ``optax.scale_by_<name>``: ``lion``, ``radam``, ``yogi``, ...

    Raises:
      InputError: there is no such direction, it does not take an argument, or its update of an entry depends on other
        entries. A direction that `TRAITS` does not list is checked by ``init``, from the shapes of its state.
    """
    factory = _direction_factory(name)
    try:
        inner = factory(**kwargs)
    except TypeError as error:
        takes = ", ".join(inspect.signature(factory).parameters)
        raise InputError(f"optimizer.kwargs of {name!r}: {error}; it takes {takes or 'nothing'}.") from error
    traits = [TRAITS.get(part.name) for part in _parts(inner.update)]
    if any(trait and not trait.entrywise for trait in traits):
        raise _not_entrywise(name)
    return inner if all(traits) else _checked_by_shapes(inner, name)


def direction_eps(name: str, **kwargs: Any) -> float | None:
    """The epsilon that a direction adds to a gradient's size, ``None`` if it has none; for the printed table.

    Where optax adds it under the square root (rmsprop, adagrad), it is the square root.
    """
    parameters = inspect.signature(_direction_factory(name)).parameters
    if "eps" not in parameters:
        return None
    eps = kwargs.get("eps", parameters["eps"].default)
    in_sqrt = "eps_in_sqrt" in parameters and kwargs.get("eps_in_sqrt", parameters["eps_in_sqrt"].default)
    return math.sqrt(eps) if in_sqrt or name in ("adagrad", "rss") else eps


def homogeneity(inner: optax.GradientTransformation) -> int | None:
    """The power with which a direction's updates follow its gradients: 1 for SGD, 0 for Adam, Lion, RMSprop.

    From `TRAITS`; ``None`` if that does not tell: a part is not listed, or ``optax.partition`` mixes both.
    """
    return _degree(inner.update)


def require_direction(inner: optax.GradientTransformation, parametrization: Parametrization) -> None:
    """Raises `InputError` unless ``inner`` is a direction that ``parametrization`` allows.

    Refused are finished optimizers, Muon, and directions that are linear in the gradient where the parametrization
    allows normalized updates only. Transformations that are not optax's are taken for normalized directions.
    """
    if not isinstance(parametrization, Parametrization):
        raise InputError(f"parametrization is {parametrization!r}: use depthmup_flax.get_parametrization(name).")
    parts = list(_parts(inner.update))
    if any(_steps_downhill(part) for part in parts):
        raise InputError(
            "inner is a finished optimizer, which has a learning rate of its own: pass the direction alone, such as "
            "optax.scale_by_adam() for optax.adam(...) or optax.trace(0.9) for optax.sgd(..., momentum=0.9)."
        )
    if any(part.name == "scale_by_muon" for part in parts):
        raise InputError(
            "inner is scale_by_muon: its update of an entry depends on other entries, but the rule is for entrywise "
            "directions such as optax.scale_by_adam()."
        )
    if parametrization.normalized_updates_only and homogeneity(inner) == 1:
        alpha, gamma = parametrization.alpha, parametrization.gamma
        raise InputError(
            f"the parametrization with alpha={alpha:g}, gamma={gamma:g} (preset 'block_only') is for Adam-like "
            f"optimizers: with SGD the learning rate would grow with the depth ratio r as r^{alpha - gamma:g} and "
            "become unstable. Use parametrization.preset='depth_mup', which scales only the block with SGD, or an "
            "Adam-like optimizer."
        )


class _Part(NamedTuple):
    """An update function that is not composed of others."""

    name: str  # of the optax function that made it; "" for one that is not from optax
    closure: Mapping[str, Any]  # the variables that it closes over


def _parts(update: Callable[..., Any]) -> Iterator[_Part]:
    """The elementary transformations that an ``update`` function consists of."""
    closure, name, children = _closure(update), _optax_name(update), _children(update)
    if inspect.isfunction(factory := closure.get("inner_factory")):  # of optax.inject_hyperparams
        yield _Part(_optax_name(factory), closure.get("other_hps", {}))
        return
    for child in children:
        yield from _parts(child)
    if not children or not name:
        yield _Part(name, closure)


def _degree(update: Callable[..., Any]) -> int | None:
    degrees, name = [_degree(child) for child in _children(update)], _optax_name(update)
    if not degrees:
        return TRAITS[name].degree if name in TRAITS else None
    if name == "partition":  # alternatives, not steps
        return degrees[0] if len(set(degrees)) == 1 else None
    if 0 in degrees:  # what precedes or follows a normalization changes nothing
        return 0
    return None if None in degrees or not name else 1


def _children(update: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The update functions that ``update`` calls."""
    owner = getattr(update, "__self__", None)
    if isinstance(owner, optax.MultiSteps):
        return [owner.inner_opt.update]
    return [child for value in _closure(update).values() for child in _update_functions(value)]


def _update_functions(value: Any) -> list[Callable[..., Any]]:
    if isinstance(value, (optax.GradientTransformation, optax.GradientTransformationExtraArgs)):
        return [value.update]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [function for item in value for function in _update_functions(item)]
    return [value] if inspect.isfunction(value) and value.__name__ in ("update", "update_fn") else []


def _closure(function: Callable[..., Any]) -> Mapping[str, Any]:
    if not inspect.isfunction(function):
        return {}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    # A function that calls itself is in its own closure.
    return {name: cell.cell_contents for name, cell in cells if cell.cell_contents is not function}


def _optax_name(function: Any) -> str:
    """``scale_by_adam`` for a function of optax, or one that it made; "" for any other."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    return name.split(".")[0] if module.partition(".")[0] == "optax" else ""


def _steps_downhill(part: _Part) -> bool:
    """Whether a part multiplies by minus a learning rate, as a finished optimizer's last part does."""
    if part.name == "scale_by_schedule":
        return _optax_name(part.closure.get("step_size_fn")) == "scale_by_learning_rate"
    if part.name == "scale":
        return _is_negative(part.closure.get("step_size"))
    factory = getattr(optax, part.name, None)  # of optax.inject_hyperparams: optax.adam, ...
    signature = inspect.signature(factory).parameters if inspect.isfunction(factory) else {}
    return part.name not in TRAITS and "learning_rate" in signature


def _is_negative(value: Any) -> bool:
    try:
        return bool(np.all(np.asarray(value) < 0))
    except (jax.errors.TracerArrayConversionError, TypeError):  # a mapped value cannot be looked at
        return False


def _direction_factory(name: str) -> Callable[..., optax.GradientTransformation]:
    prefix = "scale_by_"
    optax_names = {n.removeprefix(prefix) for n in dir(optax) if n.startswith(prefix)} - {"learning_rate", "schedule"}
    factory = DIRECTIONS.get(name) or (getattr(optax, prefix + name) if name in optax_names else None)
    if factory is None:
        raise InputError(f"optimizer.name is {name!r}: {did_you_mean(name, {*DIRECTIONS, *optax_names})}")
    return factory


def _not_entrywise(name: str) -> InputError:
    return InputError(
        f"optimizer.name is {name!r}: its update of an entry depends on other entries, but the rule is for entrywise "
        "optimizers. Use, for example, sgd, momentum, adam, lion or rmsprop."
    )


def _checked_by_shapes(inner: optax.GradientTransformation, name: str) -> optax.GradientTransformation:
    """``inner``, whose ``init`` refuses a state with arrays of a shape that no parameter has."""

    def init(params: ArrayTree) -> ArrayTree:
        state = inner.init(params)
        shapes = {np.shape(leaf) for leaf in jax.tree.leaves(params)}
        if any(np.size(leaf) > 1 and np.shape(leaf) not in shapes for leaf in jax.tree.leaves(state)):
            raise _not_entrywise(name)
        return state

    return optax.GradientTransformationExtraArgs(init, optax.with_extra_args_support(inner).update)
