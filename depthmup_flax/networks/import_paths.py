"""Names of the user's classes and functions: import paths, and objects of this process; digests of the user's files."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import operator
import os
import re
import sys
import sysconfig
import types
import uuid
from pathlib import Path
from typing import Any

from depthmup_flax.networks.user_code import calling
from depthmup_flax.util.errors import InputError, without_token

_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_SESSION = "session:"
_registered: dict[str, Any] = {}  # name -> object
_seen: dict[str, tuple[Any, str]] = {}  # module -> how it was loaded, and the digest of its file


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
    if name.startswith(_SESSION):  # or of an earlier process that ran the same code
        own, alike = without_token(name), {without_token(known): obj for known, obj in _registered.items()}
        if own not in alike:
            raise InputError(f"{field} is {own!r}: it was defined in another process. Move it to a file: {example}.")
        return _registered.get(name, alike[own])
    if not is_import_path(name):
        raise InputError(f"{field} is {name!r}: use an import path, such as {example}.")
    module_name, _, attributes = name.partition(":")
    module = _module(module_name, name, field)
    try:
        return operator.attrgetter(attributes)(module)
    except AttributeError as error:
        raise InputError(f"{field} is {name!r}: there is no {error.name}.") from error


def register(obj: Any, kind: str) -> str:
    """A name for a class, a function or data of this process: ``"session:<qualified name>#<random digits>"``.

    The digits tell objects of a process apart; they are no part of what a run is. ``kind`` names an object without a
    name of its own, such as a lambda.
    """
    for name, known in _registered.items():
        if known is obj:
            return name
    own = getattr(functools.partial(obj).func if callable(obj) else obj, "__qualname__", "")
    name = f"{_SESSION}{kind if own.endswith('<lambda>') else own or kind}#{uuid.uuid4().hex[:8]}"
    _registered[name] = obj
    return name


def project_code() -> dict[str, str]:
    """Module -> 16 digits of a SHA-256 of its file, for all imported modules of the user's own.

    These are the modules outside of the standard library, installed packages and this package, wherever their files
    lie; without the main script. Comments, docstrings, annotations of functions and line breaks do not count, nor does
    Python's version. A file is read when it is first seen.
    """
    result = {}
    for name, module in sorted(sys.modules.items()):
        own = getattr(module, "__dict__", {})  # `getattr` of a name would make lazy modules import others
        file, loaded = own.get("__file__"), own.get("__spec__")  # another one after a reload
        if isinstance(file, str) and name not in ("__main__", "__mp_main__") and _is_users(file):
            if name not in _seen or _seen[name][0] is not loaded:
                _seen[name] = loaded, _file_digest(file, own.get("__loader__"))
            result[name] = _seen[name][1]
    return result


def _module(module_name: str, name: str, field: str) -> types.ModuleType:
    directory = os.getcwd()
    if directory not in sys.path and "" not in sys.path:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()  # the file may be newer than the listing of its directory
    with calling(f"import {module_name}"):
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            missing = str(error.name)
            if not f"{module_name}.".startswith(f"{missing}."):  # the module itself imports it
                raise
    raise InputError(
        f"{field} is {name!r}: there is no module {missing}. Install it, or run the command from the directory that "
        f"holds {missing.partition('.')[0]}; an import path has no .py."
    )


@functools.cache
def _is_users(file: str) -> bool:
    """Whether a file is neither installed nor of the standard library nor of this package."""
    path = Path(file).resolve()
    places = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parents[1])
    installed = {"site-packages", "dist-packages"} & {*path.parts, *Path(file).parts}
    return not (installed or any(path.is_relative_to(Path(place).resolve()) for place in places))


def _file_digest(file: str, loader: Any) -> str:
    """Of what a module's file says, which may be in an archive or deleted."""
    source = b""
    with contextlib.suppress(OSError):
        source = loader.get_data(file) if hasattr(loader, "get_data") else Path(file).read_bytes()
    with contextlib.suppress(SyntaxError, ValueError):  # a compiled module
        source = _syntax(ast.parse(source)).encode()
    return SOURCE_FORM + hashlib.sha256(source).hexdigest()[:16]


SOURCE_FORM = "ast2:"  # of digests: those of another form cannot be compared
_FOR_PEOPLE = {
    ast.FunctionDef: ("returns", "type_comment"),
    ast.AsyncFunctionDef: ("returns", "type_comment"),
    ast.arg: ("annotation", "type_comment"),
}


def _syntax(node: Any) -> str:
    """A syntax tree as text: what is absent or only for people is left out, so it is the same in all Pythons."""
    if isinstance(node, list):
        return f"[{', '.join(_syntax(item) for item in node if not _does_nothing(item))}]"
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.JoinedStr):  # Python 3.12 adds empty texts
        node = ast.JoinedStr([x for x in node.values if not (isinstance(x, ast.Constant) and x.value == "")])
    hidden = _FOR_PEOPLE.get(type(node), ())
    present = [(name, x) for name, x in ast.iter_fields(node) if name not in hidden and x is not None and x != []]
    return f"{type(node).__name__}({', '.join(f'{name}={_syntax(x)}' for name, x in present)})"


def _does_nothing(node: Any) -> bool:
    """Whether a statement is a docstring, another constant or ``pass``."""
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
