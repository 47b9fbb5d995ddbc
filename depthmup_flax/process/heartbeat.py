"""A watch over the processes of a run: it ends all of them when one fails, or is silent (stopped or unreachable).

JAX's own heartbeats crash the others (SIGABRT, exit code 134, a core dump), also after all processes were suspended
together. The callback that could prevent that cannot be written in Python (jaxlib 0.10 to 0.12: ``std::bad_cast``). So
this watch replaces them, with a shorter timeout.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from depthmup_flax.util.errors import STOPPED

_BEATS, _ENDS = "depthmup/heartbeat/", "depthmup/end/"
_TICK_S = 1.0
_READ_BEATS = 3  # the others read why a process ends within one beat, if they are not too busy


class Store(Protocol):
    """The part of JAX's client of the coordination service, which process 0 hosts, that is used here."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Sets a value."""

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """All keys below ``key``, with their values."""


class Watch:
    """Threads that tell the other processes that this one lives, and end this one when another does not.

    Every process counts up a number in the ``store``. Process 0 looks at those of all, and writes down which one is
    silent; the others read that, or find that process 0 does not answer. A process that fails writes down why. Time is
    counted in seconds in which this process itself ran: it may have been stopped together with the others.

    Args:
      store: shared by the processes.
      process: number of this one, of ``count``.
      timeout_s: a process is silent that gives no sign of life for so long.
      beat_s: between two signs of life.
    """

    def __init__(self, store: Store, process: int, count: int, timeout_s: float, beat_s: float = 1.0) -> None:
        self._store, self._process, self._count = store, process, count
        self._timeout_s, self._beat_s = timeout_s, beat_s
        self._beats: Mapping[str, str] = {}
        self._answers = 0
        self._ended = threading.Event()

    def start(self) -> None:
        """Starts the threads, which end with the process."""
        for target in (self._beat, self._judge):
            threading.Thread(target=target, daemon=True, name=target.__name__).start()

    def end(self) -> None:
        """No process is judged from now on: the run has ended. This one still gives signs of life."""
        self._ended.set()

    def end_all(self, code: int, why: str) -> None:
        """Ends the other processes with that exit code, and returns when they have had time to learn it.

        They print ``why``, a sentence, and that it comes from this process.
        """
        self._write_end(code, f"process {self._process}: {why}")
        self.end()
        time.sleep(_READ_BEATS * self._beat_s)

    def _write_end(self, code: int, sentence: str) -> None:
        with contextlib.suppress(Exception):
            self._store.key_value_set(f"{_ENDS}{self._process}", json.dumps([code, sentence]), True)

    def _beat(self) -> None:
        beat = 0
        while True:
            with contextlib.suppress(Exception):  # no answer: see _judge. Also during the shutdown.
                self._store.key_value_set(f"{_BEATS}{self._process}", str(beat), True)
                for name, end in self._store.key_value_dir_get(_ENDS):
                    if name != f"{_ENDS}{self._process}" and not self._ended.is_set():
                        self._leave(*json.loads(end))
                if self._process == 0:
                    self._beats = dict(self._store.key_value_dir_get(_BEATS))
                self._answers += 1
            beat += 1
            time.sleep(self._beat_s)

    def _judge(self) -> None:
        silent_s: dict[int, float] = {}
        before: dict[int, object] = {}
        while not self._ended.wait(_TICK_S):
            # Signs of life: the number of answers from process 0, which hosts the store, and, there, all beats.
            signs: dict[int, object] = {0: self._answers}
            if self._process == 0:
                signs |= {i: self._beats.get(f"{_BEATS}{i}") for i in range(1, self._count)}
            for i, sign in signs.items():
                # Before the first sign a process may still be joining; JAX has a timeout for that.
                alive = sign != before.get(i) or sign is None
                silent_s[i] = 0.0 if alive else silent_s.get(i, 0.0) + _TICK_S
            before = signs
            silent = [i for i, seconds in silent_s.items() if seconds >= self._timeout_s]
            if silent:
                sentence = (
                    f"process {', '.join(map(str, silent))} has given no sign of life for {self._timeout_s:.0f} s: it "
                    "is stopped, or its machine cannot be reached. Rerun the command, which resumes from the last "
                    "checkpoint."
                )
                if self._process == 0:
                    self._write_end(STOPPED, sentence)
                self._leave(STOPPED, sentence)

    def _leave(self, code: int, sentence: str) -> None:
        with contextlib.suppress(OSError):
            print(f"error: {sentence}", file=sys.stderr, flush=True)
        # The others read the sentence before this process closes its connections; process 0, the host, is the last.
        time.sleep((_READ_BEATS if self._process == 0 else 1) * self._beat_s)
        os._exit(code)
