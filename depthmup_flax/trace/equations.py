"""What an equation of a jaxpr calls, the line of the user's code that made it, and its shapes."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence
from typing import Any

from jax.extend import core

from depthmup_flax.util.jaxprs import opened

# Parameters of an equation that hold the jaxpr of a function.
_JAXPRS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
# Directories of libraries, whose lines a user did not write.
_LIBRARIES = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|[/\\]depthmup_flax[/\\]|^<")


def called_names(eqn: core.JaxprEqn) -> list[str]:
    """Names of a function, kernel or callback, and of the primitive, the most telling first.

    A function also has the name ``file.py:function``, which tells apart functions of several
    libraries.
    """
    params = eqn.params
    callback = getattr(params.get("callback"), "callback_func", params.get("callback"))
    names = [params.get("name"), params.get("target_name"), getattr(callback, "__name__", None)]
    for key in _JAXPRS:
        if params.get(key) is not None:
            names += _names_of_function(params[key])
    texts = (name for name in names if isinstance(name, str) and name)
    return [*dict.fromkeys(texts), eqn.primitive.name]


def _names_of_function(jaxpr: Any) -> list[str]:
    debug_info = getattr(opened(jaxpr)[0], "debug_info", None)
    source = getattr(debug_info, "func_src_info", None) or ""  # "attention at /path/file.py:12"
    name, _, place = source.partition(" at ")
    if not name.isidentifier():
        return []
    file = pathlib.PurePath(place.rpartition(":")[0]).name
    return [name, f"{file}:{name}"]


def source_line(callers: Sequence[core.JaxprEqn]) -> str:
    """``file.py:12``, the innermost line outside of libraries that made these equations, or "".

    An equation of a function that JAX has traced before does not know who called it.
    """
    for eqn in reversed(callers):
        for frame in getattr(getattr(eqn.source_info, "traceback", None), "frames", ()):
            if not _LIBRARIES.search(frame.file_name):
                return f"{pathlib.PurePath(frame.file_name).name}:{frame.line_num}"
    return ""


def shapes_of(variables: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shapes of a jaxpr's variables; of what is no array, ``()``."""
    return [tuple(getattr(var.aval, "shape", ())) for var in variables]


def arrays_text(variables: Sequence[Any]) -> str:
    """``float32[64, 8], int32[64]``, for errors."""
    return ", ".join(f"{var.aval.dtype}{list(var.aval.shape)}" for var in variables)
