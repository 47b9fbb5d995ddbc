"""A watch over the processes of a run: it ends all of them when one fails, or stops answering.

JAX's own heartbeats crash the others (SIGABRT, exit code 134, a core dump), also after all processes were suspended
together. Python cannot prevent that (jaxlib 0.10 to 0.12: ``std::bad_cast``), so this watch has a shorter timeout.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from depthmup_flax.util.errors import STOPPED

_BEATS, _ENDS = "depthmup/heartbeat/", "depthmup/end/"
_TICK_S = 1.0
_JOIN_S = 10  # a store that does not answer must not keep the process alive
_READ_BEATS = 3  # in which the others have read why a process ends


class Watch:
    """Threads that report this process as alive, and end it when another process has failed or stopped.

    Every process increments a number in the ``store``. Process 0 reads all of them and writes which process is silent;
    the others read that, or notice that process 0 does not answer. A process that fails writes the reason. Timeouts
    count only seconds in which this process ran: all processes may have been suspended together.

    Args:
      store: JAX's client of the coordination service, which process 0 hosts.
      process: number of this one, of ``count``.
      timeout_s: a process without a heartbeat for this long is silent.
      beat_s: between two heartbeats.
    """

    def __init__(self, store: Any, process: int, count: int, timeout_s: float, beat_s: float = 1.0) -> None:
        self._store, self._process, self._count = store, process, count
        self._timeout_s, self._beat_s = timeout_s, beat_s
        self._beats: Mapping[str, str] = {}
        self._answers = 0
        self._ended = threading.Event()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=it, daemon=True, name=it.__name__) for it in (self._beat, self._judge)]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """The run has ended: stops watching the others. This process still sends heartbeats."""
        self._ended.set()

    def stop(self) -> None:
        """Ends the threads, before Python ends: one that is inside the store then would abort the process."""
        self.end()
        self._stopped.set()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def end_all(self, code: int, why: str) -> None:
        """Ends the other processes with an exit code; they print this process's number and ``why``, a sentence.

        Returns when they have had time to read it.
        """
        self._write_end(code, f"process {self._process}: {why}")
        self.end()
        time.sleep(_READ_BEATS * self._beat_s)

    def _write_end(self, code: int, sentence: str) -> None:
        with contextlib.suppress(Exception):
            self._store.key_value_set(f"{_ENDS}{self._process}", json.dumps([code, sentence]), True)

    def _beat(self) -> None:
        beat = 0
        while not self._stopped.is_set():
            with contextlib.suppress(Exception):  # no answer, which _judge notices; or the shutdown
                self._store.key_value_set(f"{_BEATS}{self._process}", str(beat), True)
                for name, end in self._store.key_value_dir_get(_ENDS):
                    if name != f"{_ENDS}{self._process}" and not self._ended.is_set():
                        self._leave(*json.loads(end))
                if self._process == 0:
                    self._beats = dict(self._store.key_value_dir_get(_BEATS))
                self._answers += 1
            beat += 1
            self._stopped.wait(self._beat_s)

    def _judge(self) -> None:
        silent_s: dict[int, float] = {}
        before: dict[int, object] = {}
        while not self._ended.wait(_TICK_S):
            signs: dict[int, object] = {0: self._answers}  # process 0 hosts the store, so an answer is its heartbeat
            if self._process == 0:
                signs |= {i: self._beats.get(f"{_BEATS}{i}") for i in range(1, self._count)}
            for i, sign in signs.items():
                # Before its first heartbeat a process may still be joining, for which JAX has a timeout.
                alive = sign != before.get(i) or sign is None
                silent_s[i] = 0.0 if alive else silent_s.get(i, 0.0) + _TICK_S
            before = signs
            silent = [i for i, seconds in silent_s.items() if seconds >= self._timeout_s]
            if silent:
                sentence = (
                    f"process {', '.join(map(str, silent))} has sent no heartbeat for {self._timeout_s:.0f} s: it is "
                    "stopped, or its machine is unreachable. Rerun the command, which resumes from the last checkpoint."
                )
                if self._process == 0:
                    self._write_end(STOPPED, sentence)
                self._leave(STOPPED, sentence)

    def _leave(self, code: int, sentence: str) -> None:
        with contextlib.suppress(OSError):
            print(f"error: {sentence}", file=sys.stderr, flush=True)
        # The others need time to read the sentence; process 0, which hosts the store, leaves last.
        time.sleep((_READ_BEATS if self._process == 0 else 1) * self._beat_s)
        os._exit(code)
