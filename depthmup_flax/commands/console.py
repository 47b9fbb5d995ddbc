"""How commands show the messages of `depthmup_flax.util.messages`, and warnings of other libraries."""

from __future__ import annotations

import logging
import sys

from absl import logging as absl_logging

from depthmup_flax.util.messages import PACKAGE


def show() -> _Output:
    """Shows the messages of this package as plain lines; returns the handler.

    Progress and results go to standard output; warnings and errors, also those of other libraries, to standard error.
    """
    output = _Output()
    output.setFormatter(_Plain())
    PACKAGE.handlers = [output]
    PACKAGE.setLevel(logging.INFO)
    PACKAGE.propagate = False  # absl would show warnings again
    absl_logging.get_absl_handler().setFormatter(_Plain())
    return output


class _Plain(logging.Formatter):
    """The message alone; ``warning: `` or ``error: `` before those."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


class _Output(logging.Handler):
    """Writes to the present standard output and error, above a progress bar if there is one."""

    quiet = False

    @property
    def rewrites_lines(self) -> bool:
        """Whether progress bars are shown."""
        return not self.quiet

    def emit(self, record: logging.LogRecord) -> None:
        warns = record.levelno >= logging.WARNING
        if self.quiet and not (warns or getattr(record, "result", False)):
            return
        try:
            text, stream = self.format(record), sys.stderr if warns else sys.stdout
            if stream.isatty() and "tqdm" in sys.modules:
                sys.modules["tqdm"].tqdm.write(text, file=stream)
            else:
                stream.write(text + "\n")
            stream.flush()
        except Exception:
            self.handleError(record)
