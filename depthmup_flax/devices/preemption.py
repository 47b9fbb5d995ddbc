"""Preemption: a signal takes effect between two steps, after the same step in all processes."""

import contextlib
import itertools
import os
import signal
import threading
from types import FrameType
from typing import Self

import jax
from jax.experimental import multihost_utils

# Of `Preemption.reached` in this process. JAX asks for the one after the greatest that any process has passed, 0 before
# the first: steps of a resumed run start above it, and those of a second run below it, so that they may never meet it.
_CALLS = itertools.count(1)


class Interrupted(SystemExit, KeyboardInterrupt):
    """The second Ctrl-C: a script ends without a traceback, and with the exit code that shells give it."""


class Preemption:
    """A context in which SIGTERM (from a scheduler) and the first Ctrl-C only set `asked`.

    With several processes JAX's preemption service handles SIGTERM in any of them and chooses the step, and SIGINT is
    not handled. Outside the main thread the context does nothing.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._previous_handlers: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and jax.process_count() == 1:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous_handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers.clear()

    @property
    def asked(self) -> bool:
        """Whether this process has received a signal. With several processes call `reached`."""
        return self._signal is not None

    def reached(self) -> bool:
        """Whether to save and exit after this step; all processes must call this after every step."""
        return multihost_utils.reached_preemption_sync_point(next(_CALLS)) if jax.process_count() > 1 else self.asked

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise Interrupted(128 + signal.SIGINT)
        if not self.asked:  # os.write: the signal may have interrupted a print, which is not reentrant
            with contextlib.suppress(OSError):  # a closed terminal
                os.write(2, b"preempted: saving the state; press Ctrl-C to exit at once\n")
        self._signal = number
