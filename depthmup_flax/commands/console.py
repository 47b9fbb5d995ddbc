"""Shows messages of `depthmup_flax.util.messages` and warnings of other libraries in commands."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any

from absl import logging as absl_logging

from depthmup_flax.util.errors import printable
from depthmup_flax.util.messages import PACKAGE


def show(*, traceback: bool = False, level: int = logging.INFO) -> _Output:
    """Shows messages from ``level`` on as lines; with ``traceback``, errors of other libraries have theirs."""
    output = _Output()
    output.setFormatter(_Plain())
    PACKAGE.handlers = [output]
    PACKAGE.setLevel(level)
    PACKAGE.propagate = False  # absl would show warnings again
    absl_logging.get_absl_handler().setFormatter(_Plain() if traceback else _FirstLine())
    sys.unraisablehook = functools.partial(_hook, sys.unraisablehook)
    return output


def _hook(usual: Callable[[Any], object], unraisable: Any) -> None:
    """Drops what Orbax leaves behind when it fails to read a file: callbacks and coroutines of a closed event loop."""
    if "Event loop is closed" not in str(unraisable.exc_value) and not inspect.iscoroutine(unraisable.object):
        usual(unraisable)


class _Plain(logging.Formatter):
    """The message, with ``warning: `` or ``error: `` if it is one."""

    def format(self, record: logging.LogRecord) -> str:
        text = printable(super().format(record))
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


class _FirstLine(_Plain):
    """Of other libraries the first line: what an error means for the run, the run says in a sentence of its own."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage().partition("\n")[0]
        return super().format(logging.LogRecord(record.name, record.levelno, "", 0, text, None, None))


class _Output(logging.Handler):
    """Writes to the current standard output and error, above a progress bar."""

    quiet = False

    @property
    def rewrites_lines(self) -> bool:
        """Whether progress bars are shown."""
        return not self.quiet

    def emit(self, record: logging.LogRecord) -> None:
        warns = record.levelno >= logging.WARNING
        if self.quiet and not (warns or getattr(record, "result", False)):
            return
        text, stream = self.format(record), sys.stderr if warns else sys.stdout
        with contextlib.suppress(OSError):  # the reader has gone, as with | head, or the disk is full: the work goes on
            stream.write(text + "\n")
            stream.flush()
