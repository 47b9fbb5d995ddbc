"""What an equation of a jaxpr calls, by name, and where in the user's code."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend import core

from depthmup_flax.util.jaxprs import opened

_JAXPRS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
# Directories of libraries, whose lines a user did not write.
_LIBRARIES = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|[/\\]depthmup_flax[/\\]|^<")


def called_names(eqn: core.JaxprEqn) -> list[str]:
    """Names of a function, kernel, callback or foreign call, and of the primitive, the most telling first.

    A function also has the name ``file.py:function``, which tells apart functions of several libraries.
    """
    return [*dict.fromkeys(_names(eqn)), eqn.primitive.name]


def _names(eqn: core.JaxprEqn) -> Iterator[str]:
    params = eqn.params
    for name in (params.get("name"), params.get("target_name"), _function_name(params.get("callback"))):
        if isinstance(name, str) and name:
            yield name
    for inner in (params[key] for key in _JAXPRS if params.get(key) is not None):
        # "attention at /path/file.py:12"
        source = getattr(getattr(opened(inner)[0], "debug_info", None), "func_src_info", None) or ""
        name, _, place = source.partition(" at ")
        if name.isidentifier():
            yield name
            yield f"{pathlib.PurePath(place.rpartition(':')[0]).name}:{name}"


def _function_name(callback: Any) -> str | None:
    """The name of what a callback calls."""
    return getattr(getattr(callback, "callback_func", callback), "__name__", None)


def source_line(callers: Sequence[core.JaxprEqn]) -> str:
    """``file.py:12`` of the innermost line outside of libraries that made the last of these equations; "" if none is.

    An equation of a function that JAX has traced before does not know who called it.
    """
    for eqn in reversed(callers):
        for frame in getattr(getattr(eqn.source_info, "traceback", None), "frames", ()):
            if not _LIBRARIES.search(frame.file_name):
                return f"{pathlib.PurePath(frame.file_name).name}:{frame.line_num}"
    return ""
