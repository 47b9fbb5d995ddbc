"""TensorBoard events of a run."""

from __future__ import annotations

import functools
import math
import pathlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorboardX.event_file_writer import EventsWriter


class EventFile:
    """TensorBoard scalars in a file ``events.out.tfevents.*``, which the first of them creates.

    The thread of ``tensorboardX.SummaryWriter`` dies of a failed write, and the next events then wait forever.

    Args:
      directory: of the file.
      purge_step: TensorBoard drops events of earlier files from this step on; ``None`` if there are none.
      attempt: number of the file in this process: files of one second need different names.
    """

    def __init__(self, directory: pathlib.Path, purge_step: int | None, attempt: int = 0) -> None:
        self._directory, self._purge_step, self._attempt = directory, purge_step, attempt

    @functools.cached_property
    def _file(self) -> EventsWriter:
        # tensorboardX imports the clients of two clouds, if they are installed, which takes seconds.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        file = EventsWriter(str(self._directory / "events"), f".{self._attempt}" if self._attempt else "")
        if self._purge_step is not None and not self._attempt:
            start = SessionLog(status=SessionLog.START)
            file.write_event(Event(step=self._purge_step, session_log=start, wall_time=time.time()))
        return file

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the numbers that are finite."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for name, value in scalars.items():
            if math.isfinite(value):
                self._file.write_event(Event(step=step, summary=scalar(name, value), wall_time=time.time()))

    def flush(self) -> None:
        """Returns when the file has everything."""
        if "_file" in vars(self):
            self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        if "_file" in vars(self):
            self._file.close()
