"""A digest of what a jaxpr computes, to tell whether two programs are the same.

It is the same in every process, so a run can keep it and compare it on resume: names, line numbers and addresses do not
enter, and a callback on the host enters by its code.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import core

from depthmup_flax.util.jaxprs import opened


def digest(jaxpr: core.ClosedJaxpr) -> str:
    """16 digits of a SHA-256 of what is computed: operations, parameters, constants, shapes; no names and addresses."""
    return hashlib.sha256("\n".join(_lines(jaxpr)).encode()).hexdigest()[:16]


_NAMES = {"name", "debug_info"}  # parameters of equations that only people read
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

    yield new([*inner.constvars, *inner.invars])
    for const in consts:
        yield from _content(const)
    for eqn in inner.eqns:
        yield f"{eqn.primitive.name} {' '.join(map(read, eqn.invars))}"
        for name in sorted(eqn.params.keys() - _NAMES):
            yield name
            yield from _content(eqn.params[name])
        yield new(eqn.outvars)
    yield " ".join(map(read, inner.outvars))


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
    """A callback on the host, which no trace shows, by its content, or as an object that is no other."""
    content = io.BytesIO()
    try:
        _Parts(content).dump(function)
    except Exception:  # of whatever cannot be pickled
        return repr(function)
    return hashlib.sha256(content.getvalue()).hexdigest()


class _Parts(pickle.Pickler):
    """Pickles functions that no module holds by their content, and no such classes."""

    def reducer_override(self, obj: Any) -> Any:
        is_loose = getattr(obj, "__module__", "") == "__main__" or "<" in getattr(obj, "__qualname__", "")
        if isinstance(obj, types.ModuleType):
            return object, (), obj.__name__
        if isinstance(obj, types.CodeType):
            return object, (), (obj.co_code, obj.co_names, obj.co_consts)
        if isinstance(obj, types.FunctionType) and is_loose:
            read = {name: obj.__globals__.get(name) for name in _names(obj.__code__)}
            closed_over = [cell.cell_contents for cell in obj.__closure__ or ()]
            return object, (), (obj.__code__, obj.__defaults__, obj.__kwdefaults__, closed_over, read)
        if isinstance(obj, type) and is_loose:
            raise pickle.PicklingError("a later class of this name may be another")
        return NotImplemented


def _names(code: types.CodeType) -> list[str]:
    """The global names in a function's code and in the functions inside."""
    inner = (name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part))
    return sorted({*code.co_names, *inner})
