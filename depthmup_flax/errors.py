"""What ends a run early, and how a program says so: exceptions that are one sentence, and exit codes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: one sentence that names the field, its value and the remedy.

    A command line prints it without a traceback and exits with `BAD_INPUT`; a library user catches it as a
    ``ValueError``.
    """


class RunStopped(RuntimeError):
    """A run cannot go on, and its config is not the reason: a full disk, storage that stalls.

    One sentence. What is written is whole, and the same command goes on once the cause is gone. A command line prints
    it and exits with `STOPPED`.
    """


class Preempted(RunStopped):
    """The process was asked to leave, has saved what it had, and is to be run again; exit code `PREEMPTED`."""


# Exit codes of the command lines, besides 0 and Python's own 1. Numbers of sysexits.h: EX_IOERR and EX_TEMPFAIL.
BAD_INPUT = 2  # the same command fails again
STOPPED = 74
PREEMPTED = 75  # asked to leave: saved, and to be run again


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the closest known name, or all of them."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(sorted(known))}."
