"""TensorBoard events of a run."""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Mapping

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar


class EventFile:
    """TensorBoard scalars in a file ``events.out.tfevents.*`` of a directory.

    ``tensorboardX.SummaryWriter`` is not used: its thread dies of the first failed write, and the next events then wait
    for ever.

    Args:
      directory: of the file.
      purge_step: TensorBoard drops events of earlier files from this step on; ``None`` if there are none.
      attempt: of several files of one process; those of the same second need different names.
    """

    def __init__(self, directory: pathlib.Path, purge_step: int | None, attempt: int = 0) -> None:
        self._file = EventsWriter(str(directory / "events"), f".{attempt}" if attempt else "")
        if purge_step is not None and not attempt:
            start = SessionLog(status=SessionLog.START)
            self._file.write_event(Event(step=purge_step, session_log=start, wall_time=time.time()))

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the numbers that are finite."""
        for name, value in scalars.items():
            if math.isfinite(value):
                self._file.write_event(Event(step=step, summary=scalar(name, value), wall_time=time.time()))

    def flush(self) -> None:
        """Returns when the file has everything."""
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._file.close()
