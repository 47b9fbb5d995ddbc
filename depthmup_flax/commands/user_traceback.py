"""Where the user's code failed, without the frames of libraries."""

from __future__ import annotations

import os
import pathlib
import sysconfig
import traceback

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
_INSTALLED = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_LIBRARIES = [_PACKAGE, *(pathlib.Path(path).resolve() for path in _INSTALLED)]


def user_traceback(error: BaseException) -> str:
    """The traceback of an exception with the frames outside of libraries; with all frames if there are no others."""
    summary = traceback.TracebackException.from_exception(error)
    summary.__cause__ = summary.__context__ = None  # JAX's notes about its own frames
    own = [frame for frame in summary.stack if not _is_of_library(frame.filename)]
    if own or isinstance(error, SyntaxError):  # which has its own line
        summary.stack = traceback.StackSummary.from_list(own)
    return "".join(summary.format())


def _is_of_library(filename: str) -> bool:
    if filename.startswith("<frozen"):
        return True
    path = pathlib.Path(os.path.realpath(filename))
    return any(path.is_relative_to(library) for library in _LIBRARIES)
