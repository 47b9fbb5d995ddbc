"""The user's classes and functions: the fields that a config can set, and errors of calls with what was passed.

Errors in the user's code keep their traceback, below one line that says which function was called with what.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax

from depthmup_flax.util.errors import InputError, UserCodeError

_REGISTERED = re.compile(r"\bsession:([^#\s]+)#[0-9a-f]{8}")  # a name of `depthmup_flax.networks.import_paths.register`
_MOST_LEAVES = 6  # of an argument shown in an error


@contextlib.contextmanager
def calling(name: str, *trees: Any) -> Iterator[None]:
    """Raises `UserCodeError` for an exception inside, which is the user's code, with shapes of its arguments ``trees``.

    `InputError` and `UserCodeError` pass as they are. ``name`` is such as ``"my_package.net:Net.__call__"``.
    """
    try:
        yield
    except (InputError, UserCodeError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        shown = _REGISTERED.sub(r"\1", name)
        call = f"{shown}({shapes_of(*trees)})" if trees else shown
        raise UserCodeError(f"{call} failed: {what}") from error


def shapes_of(*trees: Any) -> str:
    """``float32[64, 8, 8, 1], int32[64]`` for the leaves of ``trees``; for a tree of many, ``181 arrays``."""
    several = [jax.tree.leaves(tree) for tree in trees]
    return ", ".join(
        f"{len(leaves)} arrays" if len(leaves) > _MOST_LEAVES else ", ".join(map(_array_text, leaves))
        for leaves in several
        if leaves
    )


def _array_text(leaf: Any) -> str:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return repr(leaf) if isinstance(leaf, (bool, int, float, str)) else type(leaf).__name__


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
    linen = _LINEN if inspect.isclass(obj) and issubclass(obj, nn.Module) else frozenset()
    defaults = {name: p.default for name, p in parameters(obj).items() if name not in PASSED | linen}
    result = {name: MISSING if value is inspect.Parameter.empty else value for name, value in defaults.items()}
    for field in dataclasses.fields(obj) if dataclasses.is_dataclass(obj) and inspect.isclass(obj) else ():
        if field.default_factory is not MISSING and repr(result.get(field.name)) == "<factory>":
            result[field.name] = field.default_factory()
    return result


def takes(obj: Any, name: str) -> bool:
    """Whether a class or function has a parameter of this name."""
    return name in parameters(obj)


def parameters(obj: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters that can be given by name; of a class, those that make an instance."""
    if not callable(obj):
        raise InputError(f"the model is {type(obj).__name__}: it must be a class or a function that returns a network.")
    if isinstance(obj, functools.partial) and inspect.isclass(obj.func):
        left = list(parameters(obj.func).values())[len(obj.args) :]
        bound = obj.keywords  # they become defaults
        return {p.name: p.replace(default=bound[p.name]) if p.name in bound else p for p in left}
    is_own_init = inspect.isclass(obj) and obj.__init__ is not object.__init__
    try:
        # The metaclasses of NNX and Equinox hide the signature of the class.
        signature = inspect.signature(obj.__init__ if is_own_init else obj)
    except (TypeError, ValueError) as error:
        name = getattr(obj, "__qualname__", type(obj).__name__)
        raise InputError(f"the parameters of {name} cannot be read: write a function that calls it.") from error
    named = [p for p in list(signature.parameters.values())[is_own_init:] if p.kind in _NAMED]
    return {parameter.name: parameter for parameter in named}
