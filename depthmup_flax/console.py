"""What the command lines show of this package's log messages.

The library logs to ``depthmup_flax...`` and leaves every logger as it is: who uses it hears of progress by configuring
`logging`, as in ``logging.basicConfig(level=logging.INFO)``. The command lines call `shown`.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable

from absl import flags
from absl import logging as absl_logging
from tqdm import tqdm

RESULT = {"result": True}  # ``extra`` of a message that is the outcome of a command: --quiet shows it, too

_PACKAGE = logging.getLogger("depthmup_flax")


def show() -> _Output:
    """Shows the messages of this package as plain lines; returns the handler.

    Progress and results go to standard output; warnings and errors, also those of other libraries, to standard error.
    """
    output = _Output()
    output.setFormatter(_Plain())
    _PACKAGE.handlers = [output]
    _PACKAGE.setLevel(logging.INFO)
    _PACKAGE.propagate = False  # absl would show warnings again
    absl_logging.get_absl_handler().setFormatter(_Plain())
    return output


def define_quiet() -> None:
    """Defines the flag ``--quiet``."""
    if "quiet" not in flags.FLAGS:
        flags.DEFINE_bool("quiet", False, "Show only warnings, errors and the result.")


def shown(main: Callable[[list[str]], int | None]) -> Callable[[list[str]], int | None]:
    """``main`` of a command line, within `show`; `define_quiet` comes before."""
    output = show()

    @functools.wraps(main)
    def run(argv: list[str]) -> int | None:
        output.quiet = flags.FLAGS.quiet
        return main(argv)

    return run


def next_step(command: str) -> None:
    """Shows the command that a user most likely wants after this one."""
    _PACKAGE.info("next: %s", command)


def rewrites_lines() -> bool:
    """Whether progress is shown as a line that is rewritten: a command line, on a terminal, not ``--quiet``."""
    shows = any(isinstance(handler, _Output) and not handler.quiet for handler in _PACKAGE.handlers)
    return shows and sys.stdout.isatty()


class _Plain(logging.Formatter):
    """The message alone; ``warning: `` or ``error: `` before those."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


class _Output(logging.Handler):
    """Writes to the present standard output and error, above a progress bar if there is one."""

    quiet = False

    def emit(self, record: logging.LogRecord) -> None:
        warns = record.levelno >= logging.WARNING
        if self.quiet and not (warns or getattr(record, "result", False)):
            return
        try:
            text, stream = self.format(record), sys.stderr if warns else sys.stdout
            if stream.isatty():
                tqdm.write(text, file=stream)
            else:
                stream.write(text + "\n")
            stream.flush()
        except Exception:
            self.handleError(record)
