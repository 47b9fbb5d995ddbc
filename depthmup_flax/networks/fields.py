"""The fields of a user's class or function: what a config can set, and what we pass."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any

from depthmup_flax.util.errors import InputError

MISSING = dataclasses.MISSING  # the default of a field that has none

# Parameters that we pass: random keys, the rule, and what the data says.
PASSED = frozenset({"rngs", "key", "rule", "num_classes"})
# Fields of every Linen module.
_LINEN = frozenset({"parent", "name"})
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def model_fields(obj: Any) -> dict[str, Any]:
    """Name -> default, or `MISSING`, of what a class or function takes, without what we pass (`PASSED`).

    Fields of dataclasses, hence of Linen and Equinox modules; else the parameters of the function or of ``__init__``.
    """
    factories = {
        field.name: field.default_factory
        for field in (dataclasses.fields(obj) if dataclasses.is_dataclass(obj) and inspect.isclass(obj) else ())
        if field.default_factory is not MISSING
    }
    linen = _LINEN if _is_linen(obj) else frozenset()
    result: dict[str, Any] = {}
    for name, parameter in parameters(obj).items():
        if name in PASSED | linen:
            continue
        if parameter.default is inspect.Parameter.empty:
            result[name] = MISSING
        elif name in factories and type(parameter.default) is _FACTORY:
            result[name] = factories[name]()
        else:
            result[name] = parameter.default
    return result


def takes(obj: Any, name: str) -> bool:
    """Whether a class or function has a parameter of this name."""
    return name in parameters(obj)


def parameters(obj: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters that can be given by name; of a class, those that make an instance.

    Raises:
      InputError: it is no class or function whose parameters can be read.
    """
    if not callable(obj):
        raise InputError(f"the model is {type(obj).__name__}: it must be a class or a function that returns a network.")
    if isinstance(obj, functools.partial) and inspect.isclass(obj.func):
        return _without_bound(parameters(obj.func), obj)
    is_own_init = inspect.isclass(obj) and obj.__init__ is not object.__init__
    try:
        # The metaclasses of NNX and Equinox hide the signature of the class.
        signature = inspect.signature(obj.__init__ if is_own_init else obj)
    except (TypeError, ValueError) as error:
        name = getattr(obj, "__qualname__", type(obj).__name__)
        raise InputError(f"the parameters of {name} cannot be read: write a function that calls it.") from error
    named = [p for p in list(signature.parameters.values())[is_own_init:] if p.kind in _NAMED]
    return {parameter.name: parameter for parameter in named}


def _without_bound(
    own: Mapping[str, inspect.Parameter], partial: functools.partial[Any]
) -> dict[str, inspect.Parameter]:
    """The parameters that a partial call leaves open; its keywords are their defaults."""
    left = list(own.values())[len(partial.args) :]
    defaults = partial.keywords
    return {p.name: p.replace(default=defaults[p.name]) if p.name in defaults else p for p in left}


def _is_linen(obj: Any) -> bool:
    import flax.linen as nn

    return inspect.isclass(obj) and issubclass(obj, nn.Module)


@dataclasses.dataclass
class _WithFactory:
    value: list[int] = dataclasses.field(default_factory=list)


# What signatures show as the default of a field with a factory.
_FACTORY = type(inspect.signature(_WithFactory.__init__).parameters["value"].default)
