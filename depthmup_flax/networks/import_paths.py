"""Names of the user's classes and functions: import paths, and objects of this process; digests of their code."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from depthmup_flax.networks.user_code import calling
from depthmup_flax.util.errors import InputError

_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_SESSION = "session:"
_registered: dict[str, tuple[Any, str]] = {}  # name -> object and its digest


def is_import_path(name: Any) -> bool:
    """Whether `resolve` takes a name: ``"module.path:attribute"``, or what `register` returned."""
    return isinstance(name, str) and (name.startswith(_SESSION) or _IMPORT_PATH.fullmatch(name) is not None)


def resolve(name: str, field: str, example: str = "my_package.net:Net") -> Any:
    """The object that an import path, or a name of `register`, means.

    The current directory is importable, as with ``python -m``.

    Args:
      name: ``"module.path:attribute"``; the attribute may have dots.
      field: names the setting in errors, such as ``"config.model.name"``.
      example: an import path for errors.
    """
    if name.startswith(_SESSION):
        if name not in _registered:
            raise InputError(
                f"{field} is {name!r}: it was defined in another process. Move it to a file and give its import path, "
                "such as my_package.net:Net."
            )
        return _registered[name][0]
    if not is_import_path(name):
        raise InputError(f"{field} is {name!r}: use an import path, such as {example}.")
    module_name, _, attributes = name.partition(":")
    found: Any = _module(module_name, name, field)
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            where = getattr(found, "__name__", type(found).__name__)
            raise InputError(f"{field} is {name!r}: {where} has no {attribute}.")
        found = getattr(found, attribute)
    return found


def register(obj: Any, kind: str) -> str:
    """A name for an object of this process: ``"session:<qualified name>@<8 digits of its digest>"``.

    Equal code and data, closures and defaults included, give the same name; of several such objects the last counts.
    ``obj`` is a class, a function, or a tree of arrays; ``kind`` names one without a name of its own, such as a lambda.
    """
    digest = _Digest(getattr(obj, "__module__", None)).of(obj)
    own = _qualname(obj)
    name = f"{_SESSION}{kind if own.endswith('<lambda>') else own or kind}@{digest[:8]}"
    _registered[name] = obj, digest
    return name


def digests(names: Iterable[str]) -> dict[str, str]:
    """What the code behind names is: 16 digits of a SHA-256 for each module, or object of this process.

    An import path gives its module and, if another defines the object, that one: ``{"my_package.net": ...}``. Files
    are read once per process, without comments.
    """
    result = {}
    for name in names:
        obj = resolve(name, "name")
        if name.startswith(_SESSION):
            result[name.removeprefix(_SESSION).rpartition("@")[0]] = _registered[name][1]
            continue
        modules = [name.partition(":")[0]]
        if inspect.isclass(obj) or inspect.isroutine(obj):
            modules.append(obj.__module__)
        result |= {module: _module_digest(module) for module in modules if module in sys.modules}
    return result


def _module(module_name: str, name: str, field: str) -> types.ModuleType:
    directory = os.getcwd()
    if directory not in sys.path and "" not in sys.path:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()  # the file may be newer than the listing of its directory
    try:
        with calling(f"import {module_name}"):
            return importlib.import_module(module_name)
    except RuntimeError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        # What the module itself imports may be missing, too: that is an error in their code.
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            raise
    package = missing.partition(".")[0]
    raise InputError(
        f"{field} is {name!r}: there is no module {missing}. Install it, or run the command from the directory that "
        f"holds {package}; an import path has no .py."
    )


@functools.cache
def _module_digest(module: str) -> str:
    file = getattr(sys.modules[module], "__file__", None)
    content = _without_comments(Path(file).read_bytes()) if file else module.encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _without_comments(source: bytes) -> bytes:
    """What a module says, whatever its comments and line breaks; of other files, all."""
    try:
        return ast.dump(ast.parse(source)).encode()
    except (SyntaxError, ValueError):  # a compiled module
        return source


def _qualname(obj: Any) -> str:
    return getattr(obj, "__qualname__", "") or (_qualname(obj.func) if isinstance(obj, functools.partial) else "")


_PLAIN = (str, bytes, int, float, complex, bool, type(None), np.dtype)


class _Digest:
    """A hash of a class, a function, or a tree of arrays, of the module ``home``.

    A function's is that of its source, else its bytecode, with its defaults, what it closes over, and what it uses of
    its own module, such as a network of the same notebook. Of other modules, only the source of what is named counts.
    """

    def __init__(self, home: str | None) -> None:
        self.hash = hashlib.sha256()
        self.home = home
        self.seen: dict[int, Any] = {}  # what refers to itself is added once; held, so that no id is used again

    def of(self, obj: Any) -> str:
        """16 digits."""
        self.add(obj)
        return self.hash.hexdigest()[:16]

    def add(self, obj: Any) -> None:
        if isinstance(obj, _PLAIN):
            self.hash.update(f"{type(obj).__name__}{obj!r};".encode())
        elif isinstance(obj, (np.ndarray, jax.Array, np.generic)):
            numbers: Any = obj
            if jax.dtypes.issubdtype(obj.dtype, jax.dtypes.prng_key):
                numbers = jax.random.key_data(numbers)
            array = np.asarray(numbers)
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
            closed_over = inspect.getclosurevars(obj).nonlocals.values()
            yield from (_source(obj) or obj.__code__, obj.__defaults__, obj.__kwdefaults__, list(closed_over))
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
