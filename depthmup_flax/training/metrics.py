"""What a run writes for people and programs: ``metrics.jsonl``, TensorBoard events, a progress line."""

from __future__ import annotations

import json
import math
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any

import tqdm
from tensorboardX import SummaryWriter

from depthmup_flax.files import write_atomically


class MetricsWriter:
    """Appends rows to ``metrics.jsonl`` and TensorBoard event files.

    Args:
      directory: of the run.
      resume_step: rows after this step are of a part that will be computed again; they are dropped first, with a last
        line that was torn by a crash.
      evaluated: the evaluation after that step is done; else it will be done again, and its row is dropped, too.
    """

    def __init__(self, directory: pathlib.Path, resume_step: int, *, evaluated: bool = True) -> None:
        path = directory / "metrics.jsonl"
        if path.exists():
            _keep_rows_until(path, resume_step, evaluated)
        self._rows = path.open("a", encoding="utf-8")
        if not resume_step:  # nothing of an earlier attempt goes on
            for events in directory.glob("events.out.tfevents.*"):
                events.unlink()
        # TensorBoard drops events from purge_step on.
        self._events = SummaryWriter(str(directory), purge_step=resume_step + 1 if resume_step else None)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One row; values that are not finite are written as null (JSON has no NaN)."""
        row = {"step": step, **{k: finite_or_none(v) for k, v in values.items()}}
        self._rows.write(json.dumps(row) + "\n")
        self._rows.flush()
        for name, value in values.items():
            if math.isfinite(value):
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes and closes both files."""
        self._rows.close()
        self._events.close()


class NoMetrics:
    """In the place of `MetricsWriter` in all processes but the first."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes nothing."""

    def close(self) -> None:
        """Has nothing to close."""


class Progress:
    """Steps, loss, accuracy, speed and time left: a bar on a terminal, plain lines elsewhere.

    Speed is over the time since the previous line, evaluations not counted; time left is at that speed.

    Args:
      total_steps: of the run.
      first_step: steps taken before.
      steps_per_epoch: training steps in an epoch.
      units_per_step: images or tokens that a step reads.
      unit: "images" or "tokens".
      silent: shows nothing.
    """

    def __init__(
        self,
        total_steps: int,
        first_step: int,
        steps_per_epoch: int,
        *,
        units_per_step: int,
        unit: str,
        silent: bool = False,
    ) -> None:
        self._total, self._steps_per_epoch = total_steps, steps_per_epoch
        self._units_per_step, self._unit = units_per_step, unit
        self._step, self._seconds, self._since = first_step, 0.0, time.perf_counter()
        self._bar, self._silent = None, silent
        if sys.stdout.isatty() and not silent:
            self._bar = tqdm.tqdm(
                total=total_steps, initial=first_step, unit="step", file=sys.stdout, dynamic_ncols=True
            )

    def pause(self) -> None:
        """Stops the clock (for an evaluation)."""
        self._seconds += time.perf_counter() - self._since

    def go_on(self) -> None:
        """Starts the clock again."""
        self._since = time.perf_counter()

    def restart(self, step: int) -> None:
        """Counts speed from here (after the first step, which compiles)."""
        if self._bar is not None:
            self._bar.update(step - self._step)
        self._step, self._seconds, self._since = step, 0.0, time.perf_counter()

    def update(self, step: int, loss: float, accuracy: float) -> float | None:
        """Shows where training is; returns units per second, ``None`` while that is not known."""
        self.pause()
        steps = step - self._step
        rate = steps * self._units_per_step / self._seconds if steps and self._seconds else None
        speed = "" if rate is None else f"{rate:,.0f} {self._unit}/s"
        if self._bar is not None:
            self._bar.update(step - self._step)
            self._bar.set_postfix_str(f"loss {loss:.4f}, acc {accuracy:.1%}, {speed}")
        elif not self._silent:
            line = f"step {step}/{self._total}  epoch {step / self._steps_per_epoch:.1f}"
            line += f"  loss {loss:.4f}  acc {accuracy:.1%}"
            if rate is not None:
                left = (self._total - step) * self._units_per_step / rate
                line += f"  {speed}  ETA {tqdm.tqdm.format_interval(left)}"
            print(line, flush=True)
        self._step, self._seconds = step, 0.0
        self.go_on()
        return rate

    def say(self, text: str) -> None:
        """A line that stays, above the bar."""
        if self._bar is not None:
            self._bar.write(text)
        elif not self._silent:
            print(text, flush=True)

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()


def finite_or_none(value: Any) -> Any:
    """``None`` for NaN and infinities, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _keep_rows_until(path: pathlib.Path, step: int, evaluated: bool) -> None:
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # torn by a crash
            continue
        again = row["step"] == step and "test_loss" in row and not evaluated
        if row["step"] <= step and not again:
            kept.append(line)
    write_atomically(path, "".join(line + "\n" for line in kept))
