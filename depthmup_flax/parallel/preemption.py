"""Leaving when asked to: a signal is noted, and acted on between two steps, by all processes at the same one."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

import jax
from jax.experimental import multihost_utils


class Preemption:
    """While entered, SIGTERM (from a scheduler) and the first SIGINT (Ctrl-C) do not end the process.

    With several processes JAX's preemption service takes SIGTERM, in whichever process it arrives, and chooses the
    step; SIGINT stays what it was. Outside the main thread signals cannot be taken, and nothing is changed.
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Preemption:
        if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    @property
    def asked(self) -> bool:
        """Whether this process, if it is the only one, is asked to leave; several must wait for `reached`."""
        return self._noted is not None

    def reached(self, step: int) -> bool:
        """Whether to save and leave after ``step``; every process asks after every step, from the same first one."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._noted is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: at once
        if self._noted is None:
            # Not by print, which may be what was interrupted.
            os.write(2, b"asked to leave: saving first; Ctrl-C ends at once\n")
        self._noted = number
