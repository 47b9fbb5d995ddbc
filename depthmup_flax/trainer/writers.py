"""Receivers of a run's metrics besides ``metrics.jsonl``: TensorBoard, Weights & Biases, writers of your own.

Each is called in a thread of its own, so that its errors or its storage cannot stop or delay the run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import pathlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ml_collections import ConfigDict

from depthmup_flax.config.fields import writer_names
from depthmup_flax.trainer.event_file import EventFile
from depthmup_flax.trainer.wandb_run import WandbRun
from depthmup_flax.util.errors import InputError

log = logging.getLogger(__name__)

WAITING = 1000  # rows in memory; more are lost
RETRY_S = 60.0  # until a writer that has failed is opened again
CLOSE_S = 10.0  # for what is waiting, at the end of the run
WANDB_CLOSE_S = 60.0  # the last rows are uploaded
_FLUSH_S = 2.0  # between two flushes, each of which waits for the storage


class Writer(Protocol):
    """What receives the metrics of a run; a ``clu.metric_writers.MetricWriter`` is one."""

    def write_scalars(self, step: int, scalars: Mapping[str, float], /) -> None:
        """Takes the values of a step. Several calls may be for one step; values may be NaN or infinite."""

    def close(self) -> None:
        """The run has ended."""


class BackgroundWriter:
    """Calls a writer in a thread. No call raises, or waits longer than ``close_s``.

    Rows that cannot be written are lost, with one warning. A writer that has a method ``flush`` is flushed every 2 s.

    Args:
      name: of the writer, for the warning.
      make: number of the attempt, from 0 -> the writer. Called in the thread, and again after a failure.
      retry_s: seconds from a failure to the next attempt. Rows in between are lost.
      close_s: longest wait for pending rows at the end.
    """

    def __init__(
        self, name: str, make: Callable[[int], Writer], *, retry_s: float | None = None, close_s: float | None = None
    ) -> None:
        self._name, self._make = name, make
        self._retry_s = RETRY_S if retry_s is None else retry_s
        self._close_s = CLOSE_S if close_s is None else close_s
        self._waiting: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(WAITING)
        self._warned = threading.Lock()  # held after the warning
        self._closing = False
        # A daemon: a write that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._write_all, daemon=True, name=f"writer {name}")
        self._thread.start()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes a row, later."""
        try:
            self._waiting.put_nowait((step, scalars))
        except queue.Full:
            self._warn("it does not answer")

    def close(self) -> None:
        """Writes what is waiting and closes the writer, for at most ``close_s``."""
        until = time.monotonic() + self._close_s
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=self._close_s)
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._warn("it does not answer")

    def _write_all(self) -> None:
        for attempt in itertools.count():
            try:
                return self._write_to(self._make(attempt))
            except Exception as error:  # what a writer may raise is not known
                self._warn(f"{type(error).__name__}: {error}")
            until = time.monotonic() + self._retry_s
            while not self._closing and (left := until - time.monotonic()) > 0:  # so that the queue does not fill up
                with contextlib.suppress(queue.Empty):
                    self._closing = self._waiting.get(timeout=left) is None
            if self._closing:
                return

    def _write_to(self, writer: Writer) -> None:
        """Writes rows until `close`."""
        flush = getattr(writer, "flush", lambda: None)
        flushed, pending = time.monotonic(), True
        while True:
            left = flushed + _FLUSH_S - time.monotonic()
            try:
                row = self._waiting.get(timeout=max(0.0, left) if pending else None)
            except queue.Empty:
                flush()
                flushed, pending = time.monotonic(), False
                continue
            if row is None:
                self._closing = True
                return writer.close()
            writer.write_scalars(*row)
            pending = True

    def _warn(self, reason: str) -> None:
        if self._warned.acquire(blocking=False):
            log.warning("some metrics are lost to %s (%s). metrics.jsonl has all of them.", self._name, reason)


def require_writers(config: ConfigDict, own: Sequence[Writer]) -> None:
    """Raises `InputError` if a library of ``train.writers`` is absent, or one of ``own`` is not a `Writer`."""
    if "wandb" in writer_names(config) and importlib.util.find_spec("wandb") is None:
        raise InputError(
            "train.writers has 'wandb', which is not installed: run "
            'pip install "depthmup-flax[wandb]", or leave it out.'
        )
    for writer in own:
        for method in ("write_scalars", "close"):
            if not callable(getattr(writer, method, None)):
                raise InputError(
                    f"writers has a {type(writer).__name__}, which has no method {method}: pass objects with "
                    "write_scalars(step, scalars) and close(), such as those of clu.metric_writers."
                )


def open_writers(
    config: ConfigDict, own: Sequence[Writer], directory: pathlib.Path, local: pathlib.Path, resume_step: int
) -> list[BackgroundWriter]:
    """The writers of ``config.train.writers``, and ``own``; ``metrics.jsonl`` is not among them.

    Args:
      config: of the run.
      own: of the user.
      directory: of the run, in a bucket perhaps.
      local: where files of the run are written; the same if it is on a disk.
      resume_step: the first row is of a later step.
    """
    writers, names = [], writer_names(config)
    if "tensorboard" in names:
        # TensorBoard drops events from purge_step on.
        purge_step = resume_step + 1 if resume_step else None
        writers.append(BackgroundWriter("TensorBoard events", lambda attempt: EventFile(local, purge_step, attempt)))
    if "wandb" in names:
        open_run = lambda attempt: WandbRun(directory, config.to_dict())
        writers.append(BackgroundWriter("wandb", open_run, close_s=WANDB_CLOSE_S))
    for writer in own:
        kept = lambda attempt, writer=writer: writer
        writers.append(BackgroundWriter(type(writer).__name__, kept, retry_s=0.0))
    return writers
