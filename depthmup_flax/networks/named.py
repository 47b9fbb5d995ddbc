"""Names of the user's classes and functions: import paths, and objects of this process; digests of their code."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from depthmup_flax.networks.calls import calling
from depthmup_flax.networks.object_digest import object_digest
from depthmup_flax.util.errors import InputError, closest

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

    Raises:
      InputError: there is no such module or attribute.
      UserCodeError: the import fails.
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
    if module_name.endswith(".py"):
        meant = f"{module_name.removesuffix('.py')}:{attributes}"
        raise InputError(f"{field} is {name!r}: an import path names a module, not a file. Did you mean {meant!r}?")
    found: Any = _module(module_name, name, field)
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            where = getattr(found, "__name__", type(found).__name__)
            near = closest(attribute, [other for other in dir(found) if not other.startswith("_")])
            remedy = f"Did you mean {name.replace(attribute, near)!r}?" if near else f"Define {attribute} there."
            raise InputError(f"{field} is {name!r}: {where} has no {attribute}. {remedy}")
        found = getattr(found, attribute)
    return found


def register(obj: Any, kind: str) -> str:
    """A name for an object of this process: ``"session:<qualified name>@<8 digits of its digest>"``.

    Equal code and data, closures and defaults included, give the same name; of several such objects the last counts.

    Args:
      obj: a class, function, or tree of arrays.
      kind: names an object that has no name of its own, such as a lambda or ``"data"``.
    """
    digest = object_digest(obj)
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
    parent, _, last = missing.rpartition(".")
    near = closest(last, _modules_in(parent))
    path = ".".join(part for part in (parent, near) if part)
    remedy = (
        f"Did you mean {path + module_name[len(missing) :] + ':' + name.partition(':')[2]!r}?"
        if near
        else f"Install it, or run the command from the directory that holds {missing.partition('.')[0]}."
    )
    raise InputError(f"{field} is {name!r}: there is no module {missing}. {remedy}")


def _modules_in(package: str) -> list[str]:
    """The modules of a package; of the current directory for ""."""
    path = getattr(sys.modules.get(package), "__path__", ()) if package else [os.getcwd()]
    return [module.name for module in pkgutil.iter_modules(path)]


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
