"""The one exception that means "you can put this right", and the end of its sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: one sentence that names the field, its value and the remedy.

    ``train.py`` prints it without a traceback and exits with code 2; a library user catches it as a ``ValueError``.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the closest known name, or all of them."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(sorted(known))}."
