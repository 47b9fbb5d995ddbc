"""TensorBoard events of a run, written by a thread, so that their storage can neither stop nor delay the run."""

from __future__ import annotations

import contextlib
import itertools
import logging
import pathlib
import queue
import threading
import time

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

log = logging.getLogger(__name__)

WAITING = 1000  # events in memory; more are lost
RETRY_S = 60.0  # after a failure
CLOSE_S = 10.0  # for what is waiting, at the end of the run
_FLUSH_S = 2.0  # between two flushes, each of which waits for the disk


class EventFile:
    """TensorBoard scalars in a directory. No call raises, or waits for storage for more than `CLOSE_S`.

    Events that cannot be written are lost, with one warning. The writer tries again, in a new file, every `RETRY_S`.
    ``tensorboardX.SummaryWriter`` is not used: its thread dies of the first failed write, and the next events then wait
    for ever.

    Args:
      directory: where ``events.out.tfevents.*`` are written.
      purge_step: TensorBoard drops events of earlier attempts from this step on; ``None`` if there are none.
    """

    def __init__(self, directory: pathlib.Path, purge_step: int | None) -> None:
        self._prefix = str(directory / "events")
        self._waiting: queue.Queue[Event | None] = queue.Queue(WAITING)
        self._warned = threading.Lock()  # held after the warning
        if purge_step is not None:
            self._add(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START), wall_time=time.time()))
        # A daemon: a write that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._write_all, daemon=True, name="tensorboard")
        self._thread.start()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Writes a number, later."""
        self._add(Event(step=step, summary=scalar(name, value), wall_time=time.time()))

    def close(self) -> None:
        """Writes what is waiting, for at most `CLOSE_S`."""
        until = time.monotonic() + CLOSE_S
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_S)
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._warn("the storage does not answer")

    def _add(self, event: Event) -> None:
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._warn("the storage does not answer")

    def _write_all(self) -> None:
        for attempt in itertools.count():
            try:
                return self._write_to(f".{attempt}" if attempt else "")
            except Exception as error:  # an OSError, or what a writer to other storage raises
                self._warn(str(error))
            until = time.monotonic() + RETRY_S
            while time.monotonic() < until:  # so that the queue does not fill up
                with contextlib.suppress(queue.Empty):
                    if self._waiting.get(timeout=max(0.0, until - time.monotonic())) is None:
                        return

    def _write_to(self, suffix: str) -> None:
        """Writes to a new file until `close`; two files of the same second need different suffixes."""
        file, flushed, pending = EventsWriter(self._prefix, suffix), time.monotonic(), True
        while True:
            left = flushed + _FLUSH_S - time.monotonic()
            try:
                event = self._waiting.get(timeout=max(0.0, left) if pending else None)
            except queue.Empty:
                file.flush()
                flushed, pending = time.monotonic(), False
                continue
            if event is None:
                return file.close()
            file.write_event(event)
            pending = True

    def _warn(self, reason: str) -> None:
        if self._warned.acquire(blocking=False):
            log.warning("TensorBoard events cannot be written (%s): some are lost. metrics.jsonl has all rows.", reason)
