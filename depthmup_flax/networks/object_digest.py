"""A digest of what an object of this process computes or holds, to tell whether it changed."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

_PLAIN = (str, bytes, int, float, complex, bool, type(None), np.dtype)


def object_digest(obj: Any) -> str:
    """16 digits for a class, a function, or a tree of arrays.

    A function's are those of its source, else its bytecode, with its defaults, what it closes over, and what it uses of
    its own module, such as a network of the same notebook.
    """
    digest = _Digest(getattr(obj, "__module__", None))
    digest.add(obj)
    return digest.hash.hexdigest()[:16]


class _Digest:
    """A hash of objects; of other modules than ``home``, only the source of what is named itself counts."""

    def __init__(self, home: str | None) -> None:
        self.hash = hashlib.sha256()
        self.home = home
        self.seen: dict[int, Any] = {}  # what refers to itself is added once; held, so that no id is used again

    def add(self, obj: Any) -> None:
        if isinstance(obj, _PLAIN):
            self.hash.update(f"{type(obj).__name__}{obj!r};".encode())
        elif isinstance(obj, (np.ndarray, jax.Array, np.generic)):
            array = np.asarray(_numbers(obj))
            self.hash.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        elif id(obj) in self.seen:
            self.add(f"again {list(self.seen).index(id(obj))}")
        else:
            self.seen[id(obj)] = obj
            for part in self._parts(obj):
                self.add(part)

    def _parts(self, obj: Any) -> Iterator[Any]:
        """What an object consists of."""
        yield type(obj).__name__
        if isinstance(obj, Mapping):
            yield [part for item in obj.items() for part in item]
        elif isinstance(obj, (set, frozenset)):
            yield sorted(map(repr, obj))
        elif isinstance(obj, (list, tuple)):
            yield from (len(obj), *obj)
        elif isinstance(obj, functools.partial):
            yield from (obj.func, obj.args, obj.keywords)
        elif isinstance(obj, types.MethodType):
            yield from (obj.__func__, obj.__self__)
        elif isinstance(obj, types.CodeType):
            yield from (obj.co_code, obj.co_names, obj.co_varnames, obj.co_consts)
        elif isinstance(obj, types.FunctionType):
            cells = [cell.cell_contents for cell in obj.__closure__ or () if _is_filled(cell)]
            yield from (_source(obj) or obj.__code__, obj.__defaults__, obj.__kwdefaults__, cells)
            yield self._globals(obj)
        elif inspect.isclass(obj):
            yield from self._class(obj)
        elif isinstance(obj, types.ModuleType) or not hasattr(obj, "__dict__"):
            yield getattr(obj, "__name__", "")
        else:
            yield from (type(obj), dict(vars(obj)))

    def _class(self, cls: type) -> Iterator[Any]:
        yield cls.__qualname__
        source = _source(cls)
        yield source
        functions = [f for f in map(_function, vars(cls).values()) if f is not None and f.__module__ == self.home]
        if source is None and cls.__module__ == self.home:  # before Python 3.13, a class in a notebook's cell
            yield list(getattr(cls, "__annotations__", {}))
            yield [[name, value] for name, value in vars(cls).items() if isinstance(value, _PLAIN) and name[:2] != "__"]
            yield functions
        yield [self._globals(function) for function in functions]

    def _globals(self, function: types.FunctionType) -> list[Any]:
        """The names and values that a function uses of its own module, if that is ``home``."""
        if function.__module__ != self.home:
            return []
        used = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        is_own = lambda value: isinstance(value, _PLAIN) or getattr(value, "__module__", None) == self.home
        return [[name, value] for name, value in used.items() if is_own(value)]


def _names(code: types.CodeType) -> list[str]:
    """The global names in a function's code and in the functions inside."""
    inner = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part)]
    return sorted({*code.co_names, *inner})


def _function(member: Any) -> types.FunctionType | None:
    """A member of a class as the function that it wraps, as ``nn.compact`` and ``jax.jit`` do."""
    member = inspect.unwrap(getattr(member, "__func__", member))
    return member if isinstance(member, types.FunctionType) else None


def _source(obj: Any) -> str | None:
    try:
        return inspect.getsource(obj)
    except (OSError, TypeError):
        return None


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _numbers(array: Any) -> Any:
    """An array, or what a random key holds."""
    is_key = isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(array) if is_key else array
