"""Receivers of a run's metrics besides ``metrics.jsonl``: TensorBoard, Weights & Biases, writers of your own."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import os
import pathlib
import secrets
import time
from collections.abc import Mapping
from typing import Any, Protocol

from ml_collections import ConfigDict

from depthmup_flax.storage.files import is_bucket, read_json, write_atomically

log = logging.getLogger(__name__)


class Writer(Protocol):
    """What receives the metrics of a run; a ``clu.metric_writers.MetricWriter`` is one."""

    def write_scalars(self, step: int, scalars: Mapping[str, float], /) -> None:
        """Takes the values of a step. Several calls may be for one step; values may be NaN or infinite."""

    def close(self) -> None:
        """The run has ended."""


class EventFile:
    """TensorBoard scalars in a file ``events.out.tfevents.*``.

    Without ``tensorboardX.SummaryWriter``, whose thread dies of a failed write, after which the run would wait forever.

    Args:
      directory: of the file.
      purge_step: TensorBoard drops events of earlier files from this step on; ``None`` if there are none.
    """

    def __init__(self, directory: pathlib.Path, purge_step: int | None) -> None:
        # tensorboardX imports the clients of two clouds, if they are installed, which takes seconds.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        self._file = EventsWriter(str(directory / "events"))
        if purge_step is not None:
            self._write(step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the numbers that are finite."""
        from tensorboardX.summary import scalar

        for name, value in scalars.items():
            if math.isfinite(value):
                self._write(step=step, summary=scalar(name, value))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._file.write_event(Event(wall_time=time.time(), **fields))


class WandbRun:
    """A run of wandb, which a resumed run continues. For a run in a bucket, wandb's own files are in ``./wandb``.

    The environment sets the project (``WANDB_PROJECT``, default ``depthmup-flax``), the directory (``WANDB_DIR``) and
    whether wandb uploads (not with ``WANDB_MODE=offline``).

    Args:
      directory: of the run; ``wandb.json`` in it holds the name by which wandb knows the run.
      config: of the run.
    """

    def __init__(self, directory: pathlib.Path, config: ConfigDict) -> None:
        wandb = importlib.import_module("wandb")
        # It must not ask for a key, as nobody may answer, or print lines.
        wandb.setup(settings=wandb.Settings(silent=True))
        name = directory / "wandb.json"
        if not name.exists():
            write_atomically(name, f'{{"id": "{secrets.token_hex(4)}"}}\n')
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "depthmup-flax"),
            id=str(read_json(name, "delete it")["id"]),
            name=directory.name,
            dir=None if is_bucket(directory) or "WANDB_DIR" in os.environ else str(directory),
            config=config.to_dict(),
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )
        offline = f"offline; to upload the run: wandb sync {self._run.dir.removesuffix('/files')}"
        log.info("wandb: %s", self._run.url or offline)

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs the values. wandb drops those of a step that it already has."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """Uploads the last rows and ends the run."""
        self._run.finish()
