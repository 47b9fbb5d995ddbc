"""Exceptions that end a command with one sentence, exit codes, suggestions of names, and text that is safe to print."""

import difflib
import math
import numbers
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any


class InputError(ValueError):
    """Bad input: one sentence with the field, its value and the remedy. Commands print it and exit with `BAD_INPUT`."""

    def __str__(self) -> str:
        return without_token(super().__str__())


class RunStopped(RuntimeError):
    """The environment stopped the run, for example a full disk. Commands print it and exit with `STOPPED`.

    All files are complete, and rerunning the command resumes the run.
    """


class UserCodeError(RuntimeError):
    """A function of the user failed; the cause is their exception, with its traceback. Commands print both."""


class Busy(RunStopped):
    """Another process uses the work directory: rerun the command later (`TRY_LATER`)."""


class Preempted(RunStopped):
    """The process was preempted and has saved its state (`PREEMPTED`)."""


# Exit codes besides 0 and Python's 1.
BAD_INPUT = 2  # rerunning the command fails again
STOPPED = 74  # EX_IOERR of sysexits.h
PREEMPTED = TRY_LATER = 75  # EX_TEMPFAIL: rerun the command

_LONGEST = 60  # characters of a value in a sentence
_MOST_NAMES = 20  # that a sentence lists


def without_token(text: str) -> str:
    """A text with names of objects of a process without the digits that tell them from others there."""
    return re.sub(r"\b(session:[^#\s]+)#[0-9a-f]{8}", r"\1", text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the closest known name, or all of them."""
    names = sorted(known)
    if close := closest(name, names):
        return f"did you mean {close!r}?"
    more = [f"... ({len(names)} in all)"] if len(names) > _MOST_NAMES else []
    return f"use {'one of ' * (len(names) > 1)}{', '.join([*names[:_MOST_NAMES], *more])}."


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to ``name``, ignoring case; ``None`` if none is close."""
    by_lower = {other.lower(): other for other in known}
    return next((by_lower[similar] for similar in difflib.get_close_matches(str(name).lower(), by_lower, n=1)), None)


def listed(differences: Sequence[str], most: int = 5) -> str:
    """The first ``most`` differences, and the number of others, for a sentence."""
    more = len(differences) - most
    return "; ".join(differences[:most]) + (f"; and {more} more" if more > 0 else "")


def require_number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    whole: bool = False,
) -> None:
    """Raises `InputError` unless ``value`` is a finite number in its range; arrays, which may be traced, pass."""
    is_number = isinstance(value, numbers.Integral if whole else numbers.Real) and not isinstance(value, bool)
    in_range = lambda: math.isfinite(value) and least <= value < below and value > above
    if not (in_range() if is_number else hasattr(value, "dtype") and not whole):
        bounds = {"of at least": least, "above": above, "below": below}
        limits = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))
        kind = "whole number" if whole else "number" if limits else "finite number"
        raise InputError(f"{name} is {value!r}: use a {f'{kind} {limits}'.strip()}.")


def shown(value: object) -> str:
    """A value in an error sentence: its ``repr`` if that is short, else its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    is_short = len(text) <= _LONGEST and "\n" not in text and not text.startswith("<")
    return text if is_short else f"a {type(value).__name__}"


def printable(text: str) -> str:
    r"""Untrusted text that is safe to show: control and format characters, surrogates and separators as ``\x1b``."""
    controls = lambda c: c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(c.encode("unicode_escape").decode() if controls(c) else c for c in text)
