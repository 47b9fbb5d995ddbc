"""The user's classes and functions: the fields that a config can set, and errors of calls with what was passed.

Errors in the user's code keep their traceback, below one line that says which function was called with what.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax

from depthmup_flax.util.errors import InputError, UserCodeError, without_token

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
        shown = without_token(name).replace("session:", "")
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
    if isinstance(leaf, bool | int | float | str):
        return repr(leaf)
    return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else type(leaf).__name__


MISSING = inspect.Parameter.empty  # the default of a field that has none

# Parameters that we pass: random keys, the rule, and what the data says.
PASSED = frozenset({"rngs", "key", "rule", "num_classes"})
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def model_fields(obj: Any) -> dict[str, Any]:
    """Name -> default, or `MISSING`, of what a class or function takes, without what we pass (`PASSED`).

    Fields of dataclasses, hence of Linen and Equinox modules; else the parameters of the function or of ``__init__``.
    """
    is_linen = inspect.isclass(obj) and issubclass(obj, nn.Module)
    others = PASSED | ({"parent", "name"} if is_linen else set())
    result = {name: parameter.default for name, parameter in parameters(obj).items() if name not in others}
    for field in dataclasses.fields(obj) if dataclasses.is_dataclass(obj) and inspect.isclass(obj) else ():
        if field.default_factory is not dataclasses.MISSING and repr(result.get(field.name)) == "<factory>":
            result[field.name] = field.default_factory()
    return result


def takes(obj: Any, name: str) -> bool:
    """Whether a class or function has a parameter of this name."""
    return name in parameters(obj)


def parameters(obj: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters that can be given by name; of a class, those that make an instance."""
    if not callable(obj):
        raise InputError(f"the model is {type(obj).__name__}: it must be a class or a function that returns a network.")
    given = functools.partial(obj)
    if inspect.isclass(given.func) and given.func.__init__ is not object.__init__:
        # The metaclasses of NNX and Equinox hide the signature of the class.
        given = functools.partial(given.func.__init__, None, *given.args, **given.keywords)
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError) as error:
        name = getattr(obj, "__qualname__", type(obj).__name__)
        raise InputError(f"the parameters of {name} cannot be read: write a function that calls it.") from error
    return {name: parameter for name, parameter in signature.parameters.items() if parameter.kind in _NAMED}
