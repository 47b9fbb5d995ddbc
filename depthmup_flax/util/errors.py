"""Exceptions that end a run with one sentence, the exit codes of the command lines, and text that is safe to print."""

import difflib
import unicodedata
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: one sentence with the field, its value and the remedy. A command line prints it (`BAD_INPUT`)."""


class RunStopped(RuntimeError):
    """The environment stopped the run, such as a full disk; the config is fine. A command line prints it (`STOPPED`).

    All files written so far are complete, and rerunning the command resumes the run.
    """


class Busy(RunStopped):
    """Another process uses the work directory: the same command succeeds later (`TRY_LATER`)."""


class Preempted(RunStopped):
    """The process was preempted and has saved its state; a command line exits with `PREEMPTED`."""


# Exit codes besides 0 and Python's own 1. The last two are EX_IOERR and EX_TEMPFAIL of sysexits.h.
BAD_INPUT = 2  # rerunning the same command fails again
STOPPED = 74
PREEMPTED = TRY_LATER = 75  # rerun the command: the state is saved, or another process was in the way


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the closest known name, or all of them."""
    names = sorted(known)
    close = closest(name, names)
    if close is not None:
        return f"did you mean {close!r}?"
    return f"use {'one of ' * (len(names) > 1)}{', '.join(names)}."


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was likely meant to be, in any case; ``None`` if none is close."""
    by_lower = {other.lower(): other for other in known}
    similar = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return by_lower[similar[0]] if similar else None


def printable(text: str) -> str:
    r"""Text from a file as a terminal or a page may show it: characters that control either are written ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _controls(c) else c.encode("unicode_escape").decode() for c in text)


def _controls(character: str) -> bool:
    """Control and format characters (escape codes, changes of direction), surrogates, line separators."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
