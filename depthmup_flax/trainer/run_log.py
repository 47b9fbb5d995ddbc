"""Metrics of a run: rows in ``metrics.jsonl``, on which resuming relies, progress for people, and other writers."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import pathlib
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.devices import distributed
from depthmup_flax.storage.files import is_bucket, json_object, read_json, read_lines, write_atomically
from depthmup_flax.storage.sweep_records import TEST, VALIDATION, finite_or_none
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.util import progress
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Json

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
    TensorBoard drops events of earlier files from ``purge_step`` on; ``None`` if there are none.
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
    whether wandb uploads (not with ``WANDB_MODE=offline``). ``wandb.json`` in the directory of the run holds the name
    by which wandb knows it.
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


class RunLog:
    """Metrics and progress of a run: a bar on a terminal, plain lines elsewhere. Only process 0 has them.

    Rows are appended to ``metrics.jsonl``, which is on disk when a call returns, and passed to other writers: one that
    raises is left out from then on, with a warning. In a bucket, ``metrics.jsonl`` and TensorBoard's files are uploaded
    before each checkpoint and at the end. Speed is measured since the previous line, without evaluations.

    Args:
      experiment: what is trained; ``train.writers`` names the writers.
      own: further writers.
      directory: of the run.
      first_step: later rows will be computed again and are dropped, as is a last line that a crash has cut off.
      evaluated: whether the evaluation after that step is complete; otherwise its row is dropped, too.
    """

    def __init__(
        self, experiment: Experiment, own: Sequence[Writer], directory: pathlib.Path, first_step: int, evaluated: bool
    ) -> None:
        self._experiment, self._unit = experiment, experiment.dataset.unit  # images or tokens
        self._units_per_step = experiment.config.train.batch_size * experiment.dataset.units_per_example
        self.restart(first_step)
        self._open = distributed.is_first()
        if not self._open:
            return
        self._bar = progress.bar(experiment.total_steps)
        self._directory, self._local = directory, directory  # where files that grow are written
        if is_bucket(directory):
            self._local = pathlib.Path(tempfile.mkdtemp(prefix="depthmup-"))
            if (directory / "metrics.jsonl").exists():
                (self._local / "metrics.jsonl").write_bytes((directory / "metrics.jsonl").read_bytes())
        path = self._local / "metrics.jsonl"
        if path.exists():
            _drop_rows_after(path, first_step, evaluated)
        elif first_step:
            log.warning("%s is gone, and with it the rows of steps 1 to %d: restore it.", path, first_step)
        self._rows = path.open("a", encoding="utf-8")
        if not first_step:  # events of an earlier attempt
            for events in directory.glob("events.out.tfevents.*"):
                events.unlink()
        self._writers = {f"{type(writer).__name__} {i}": writer for i, writer in enumerate(own)}
        names, purge_step = experiment.config.train.writers, first_step + 1 if first_step else None
        if "tensorboard" in names:
            self._add("TensorBoard events", lambda: EventFile(self._local, purge_step))
        if "wandb" in names:
            self._add("wandb", lambda: WandbRun(directory, experiment.config))

    def restart(self, step: int) -> None:
        """Measures speed from ``step`` on (after the first call, which compiles)."""
        self._step, self._seconds, self._since = step, 0.0, time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock, for an evaluation."""
        self._seconds += time.perf_counter() - self._since
        yield
        self._since = time.perf_counter()

    def train(self, step: int, metrics: Mapping[str, float]) -> float | None:
        """Shows and writes training metrics, and the speed; returns steps per second, if it is known."""
        steps, seconds = step - self._step, self._seconds + time.perf_counter() - self._since
        rate = steps * self._units_per_step / seconds if steps and seconds else None
        self.restart(step)
        if self._open:
            total, shown = self._experiment.total_steps, f"  loss {metrics['train_loss']:.4f}"
            shown += _accuracy(metrics.get("train_accuracy"), " ")
            if rate is not None:
                left_s = (total - step) * self._units_per_step / rate
                shown += f"  {rate:,.0f} {self._unit}/s  ETA {progress.clock(left_s)}"
            if self._bar is not None:
                self._bar.show(step, f"step {step}/{total}{shown}")
            else:
                log.info("step %d/%d  epoch %.1f%s", step, total, step / self._experiment.epoch_steps, shown)
            self._write(step, metrics if rate is None else {**metrics, f"{self._unit}_per_s": rate})
        return rate and rate / self._units_per_step

    def test(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows and writes an evaluation."""
        if self._open:
            on = self._experiment.dataset.evaluated
            accuracy = _accuracy(metrics.get(f"{on}_accuracy"), f"  {on}")
            averaged = f"  ema loss {metrics[f'{on}_ema_loss']:.4f}" if f"{on}_ema_loss" in metrics else ""
            log.info("step %d  %s loss %.4f%s%s", step, on, metrics[f"{on}_loss"], accuracy, averaged)
            self._write(step, metrics)

    def upload(self) -> None:
        """Returns when the work directory, in a bucket perhaps, holds all rows; call it before a checkpoint."""
        if self._open and self._local != self._directory:
            for path in self._local.iterdir():
                (self._directory / path.name).write_bytes(path.read_bytes())

    def close(self) -> None:
        """Ends the progress and closes the writers; an error is that of ``metrics.jsonl``."""
        if self._open:
            if self._bar is not None:
                self._bar.close()
            self._for_each_writer(lambda writer: writer.close())
            self._rows.close()
            self.upload()
            if self._local != self._directory:
                shutil.rmtree(self._local)

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends a row; values that are not finite become null (JSON has no NaN)."""
        row = {"step": step, **{k: finite_or_none(v) for k, v in metrics.items()}}
        self._rows.write(json.dumps(row) + "\n")
        self._rows.flush()
        self._for_each_writer(lambda writer: writer.write_scalars(step, dict(metrics)))

    def _add(self, name: str, make: Callable[[], Writer]) -> None:
        with self._surviving(name):
            self._writers[name] = make()

    def _for_each_writer(self, call: Callable[[Writer], None]) -> None:
        for name, writer in [*self._writers.items()]:
            with self._surviving(name):
                call(writer)

    @contextlib.contextmanager
    def _surviving(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # what a writer may raise is not known
            lost = "some metrics are lost to %s (%s: %s). metrics.jsonl has all of them."
            log.warning(lost, name, type(error).__name__, error)
            self._writers.pop(name, None)


def _accuracy(value: float | None, before: str) -> str:
    return "" if value is None else f"{before} acc {value:.1%}"


def _is_metric(value: object) -> bool:
    """Whether a value is a number that fits into a float, or ``None``."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value is None or (is_number and not abs(value) > sys.float_info.max)  # type: ignore[arg-type]


def _rows(path: pathlib.Path) -> Iterator[tuple[str, Json]]:
    """Lines and their rows, without those that a crash has cut off; `InputError` for one that no run has written."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            row = json_object(line)
        except ValueError:
            continue
        whole = isinstance(row.get("step"), int)
        if not whole or not all(map(_is_metric, row.values())):
            raise InputError(f"{path}, line {number} is no row of metrics: delete it.")
        yield line, row


def _drop_rows_after(path: pathlib.Path, step: int, evaluated: bool) -> None:
    rows = []
    for line, row in _rows(path):
        of_evaluation = any(f"{split}_loss" in row for split in (TEST, VALIDATION))
        incomplete = row["step"] == step and of_evaluation and not evaluated
        if row["step"] <= step and not incomplete:
            rows.append(line)
    write_atomically(path, "".join(line + "\n" for line in rows))


def read_metrics(path: pathlib.Path) -> dict[str, np.ndarray]:
    """One row per step with metrics: ``step`` (int64 [N]), ``train_loss`` and others (float64 [N]).

    A value is NaN if the step lacks it or it was not finite. A line that a crash has cut off is left out;
    without a file there are no rows.
    """
    rows: dict[int, dict[str, float | None]] = {}
    for _, row in _rows(path) if path.exists() else ():
        rows.setdefault(row.pop("step"), {}).update(row)
    names = dict.fromkeys(name for row in rows.values() for name in row)
    steps = sorted(rows)
    columns = {name: np.array([rows[step].get(name) for step in steps], np.float64) for name in names}
    return {"step": np.array(steps, np.int64), **columns}
