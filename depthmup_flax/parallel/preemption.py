"""Preemption: a signal is noted, and acted on between two steps, after the same step in all processes."""

import os
import signal
import threading
from types import FrameType
from typing import Self

import jax
from jax.experimental import multihost_utils


class Preemption:
    """A context in which SIGTERM (from a scheduler) and the first SIGINT (Ctrl-C) do not end the process.

    With several processes JAX's preemption service handles SIGTERM in any of them and chooses the step; SIGINT is not
    handled. Outside the main thread, where Python cannot handle signals, the context does nothing.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._previous_handlers: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous_handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers.clear()

    @property
    def asked(self) -> bool:
        """Whether this process has received a signal; with several processes use `reached`."""
        return self._signal is not None

    def reached(self, step: int) -> bool:
        """Whether to save and exit after ``step``; all processes must call this after every step."""
        return multihost_utils.reached_preemption_sync_point(step) if jax.process_count() > 1 else self.asked

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.asked:  # os.write, as the signal may have interrupted a print, which cannot be entered twice
            os.write(2, b"preempted: saving the state; press Ctrl-C to exit at once\n")
        self._signal = number
