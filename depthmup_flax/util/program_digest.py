"""A digest of what a jaxpr computes, to tell whether two programs are the same.

It is the same in every process, so a run can keep it and compare it on resume: names, line numbers, addresses, what is
printed and what nothing reads do not enter, and a callback on the host enters by its code.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from depthmup_flax.util.errors import InputError, UserCodeError
from depthmup_flax.util.jaxprs import all_equations, opened


def digest(jaxpr: core.ClosedJaxpr) -> str:
    """16 digits of a SHA-256 of what is computed: operations, parameters, constants, shapes; no names and addresses."""
    return hashlib.sha256("\n".join(_lines(jaxpr)).encode()).hexdigest()[:16]


def calls_host(jaxpr: core.ClosedJaxpr) -> bool:
    """Whether a program computes with code on the host that neither a trace nor a `stated_version` shows.

    A print does not.
    """
    for eqn in all_equations(jaxpr):
        name = eqn.primitive.name
        called = getattr(eqn.params.get("callback"), "callback_func", None)
        if "callback" in name and not name.startswith("debug_") and stated_version(called) is None:
            return True
    return False


def stated_version(source: Any) -> str | None:
    """What ``fingerprint()`` of a user's function or object returns, which changes with what it computes or reads.

    ``None`` without that method. `InputError` if it returns ``None``, `UserCodeError` if it fails.
    """
    own = getattr(source, "fingerprint", None)
    if isinstance(source, type) or not callable(own):
        return None
    try:
        version = own()
    except Exception as error:
        raise UserCodeError(f"{_name_of(source)}.fingerprint() failed: {error!r}") from error
    if version is None:
        raise InputError(f"{_name_of(source)}.fingerprint() returned None: return a version, such as 'v1'.")
    return str(version)


def _name_of(source: Any) -> str:
    """That of a function, or of an object's class."""
    named = source if hasattr(source, "__qualname__") else type(source)
    return f"{named.__module__}.{named.__qualname__}"


_NAMES = {"name", "name_and_src_info", "debug_info"}  # parameters of equations that only people read
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|(?<==)0x[0-9a-f]+")


def _lines(jaxpr: Any) -> Iterator[str]:
    """A jaxpr as text, with variables numbered in the order in which they occur."""
    inner, consts = opened(jaxpr)
    numbers: dict[Any, int] = {}

    def new(variables: Any) -> str:
        return " ".join(f"{numbers.setdefault(x, len(numbers))}:{x.aval}" for x in variables)

    def read(variable: Any) -> str:
        if isinstance(variable, core.Literal):
            return "".join(_content(variable.val))
        return str(numbers[variable])

    equations, used = _used(inner)
    known = [(variable, const) for variable, const in zip(inner.constvars, consts, strict=False) if variable in used]
    yield new([*(variable for variable, _ in known), *inner.invars])
    for _, const in known:
        yield from _content(const)
    for eqn in equations:
        yield f"{eqn.primitive.name} {' '.join(map(read, eqn.invars))}"
        for name in sorted(eqn.params.keys() - _NAMES):
            yield name
            yield from _content(eqn.params[name])
        yield new(eqn.outvars)
    yield " ".join(map(read, inner.outvars))


def _used(jaxpr: core.Jaxpr) -> tuple[Sequence[core.JaxprEqn], set[Any]]:
    """The equations that results or effects depend on, and the variables that they read; a print is no effect."""
    used = {x for x in jaxpr.outvars if not isinstance(x, core.Literal)}
    equations = []
    for eqn in reversed(jaxpr.eqns):
        acts = any("Debug" not in type(effect).__name__ for effect in eqn.effects)
        if acts or not used.isdisjoint(eqn.outvars):
            equations.append(eqn)
            used |= {x for x in eqn.invars if not isinstance(x, core.Literal)}
    return equations[::-1], used


def _content(value: Any) -> Iterator[str]:
    """A constant or a parameter of an equation as text that is the same in every process."""
    if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
        yield from _lines(value)
    elif isinstance(value, tuple | list):
        yield f"{len(value)}"
        for part in value:
            yield from _content(part)
    elif isinstance(value, jax.Array | np.ndarray | np.generic):
        yield _array(value)
    elif hasattr(value, "callback_func"):
        yield _host_code(value.callback_func)
    elif callable(value):  # of a rule for derivatives, which are equations where they are used
        yield type(value).__name__
    else:
        yield _ADDRESS.sub("", repr(value))


def _array(value: Any) -> str:
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    array = np.asarray(jax.random.key_data(jax.numpy.asarray(value)) if is_key else value)
    return f"{value.dtype}{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def _host_code(function: Any) -> str:
    """A callback on the host, which no trace shows, by name and version or by content, else as an object of its own."""
    version = stated_version(function)
    if version is not None:
        return f"{_name_of(function)} {version}"
    content = io.BytesIO()
    try:
        _Parts(content).dump(function)
    except Exception:  # of whatever cannot be pickled
        return repr(function)
    return hashlib.sha256(content.getvalue()).hexdigest()


class _Parts(pickle.Pickler):
    """Pickles functions and classes that no module holds by their content."""

    def reducer_override(self, obj: Any) -> Any:
        is_loose = getattr(obj, "__module__", "") == "__main__" or "<" in getattr(obj, "__qualname__", "")
        if isinstance(obj, types.ModuleType):
            return object, (), obj.__name__
        if isinstance(obj, types.CodeType):
            return object, (), _code(obj)
        if isinstance(obj, types.FunctionType) and is_loose:
            read = {name: obj.__globals__.get(name) for name in _names(obj.__code__)}
            closed_over = [cell.cell_contents for cell in obj.__closure__ or ()]
            code = _code(obj.__code__, obj.__doc__)
            return object, (), (code, obj.__defaults__, obj.__kwdefaults__, closed_over, read)
        if isinstance(obj, type) and is_loose:
            return object, (), (obj.__bases__, {name: x for name, x in vars(obj).items() if name not in _OF_PYTHON})
        if isinstance(obj, property):
            return object, (), (obj.fget, obj.fset, obj.fdel)
        if is_loose and hasattr(obj, "__wrapped__"):  # by jit or a cache
            return object, (), obj.__wrapped__
        return NotImplemented


# Attributes that Python gives a class.
_OF_PYTHON = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__"}
_OF_PYTHON |= {"__firstlineno__", "__static_attributes__"}


def _code(code: types.CodeType, doc: str | None = None) -> tuple[Any, ...]:
    """What a function does, without its docstring ``doc``."""
    return code.co_code, code.co_names, tuple(None if const is doc else const for const in code.co_consts)


def _names(code: types.CodeType) -> list[str]:
    """The global names in a function's code and in the functions inside."""
    inner = (name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part))
    return sorted({*code.co_names, *inner})
