"""Interleaved measurements of contenders, each in a process of its own or in a shared one, and ratios of two."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).parents[1]


class Unavailable(Exception):
    """A contender cannot run here. The message is the last line of its output."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """One thing to measure.

    Attributes:
      name: for the table.
      make: ``module:function``, called once in the contender's process with ``args``. It returns the function that is
        called in every round, ``() -> {"seconds": ...}``, which may return other facts as well.
      args: values that JSON can represent.
      process: contenders with the same name here share a process; empty: a process of its own.
      python: the interpreter.
      env: environment variables, added to those of this process.
      cores: number of cores that it may use; 0: all.
      optional: if it cannot run, the others are measured without it.
    """

    name: str
    make: str
    args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    process: str = ""
    python: str = sys.executable
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    cores: int = 0
    optional: bool = False


class Measurements(dict[str, list[dict[str, Any]]]):
    """Contender -> its result in each round; ``absent``: optional contender that cannot run -> why."""

    def __init__(self) -> None:
        super().__init__()
        self.absent: dict[str, str] = {}

    @contextlib.contextmanager
    def asking(self, contender: Contender) -> Iterator[None]:
        """Leaves out an optional contender that turns out to be `Unavailable`."""
        try:
            yield
        except Unavailable as error:
            if not contender.optional:
                raise
            self.absent[contender.name] = str(error)
            self.pop(contender.name, None)


def measure(contenders: Sequence[Contender], rounds: int, *, warm: bool = True) -> Measurements:
    """Runs all contenders ``rounds`` times in turn, in reverse order in every other round.

    Args:
      contenders: what to measure.
      rounds: number of rounds.
      warm: whether each runs once before, unmeasured.

    Raises:
      Unavailable: a contender that is not optional cannot run.
    """
    measurements = Measurements()
    with contextlib.ExitStack() as stack:
        workers: dict[str, _Worker] = {}
        places = {}
        for contender in contenders:
            name, process = contender.name, contender.process or contender.name
            with measurements.asking(contender):
                if process not in workers:
                    workers[process] = stack.enter_context(_worker(contender))
                worker = workers[process]
                place = worker.ask({"make": contender.make, "args": dict(contender.args)})
                if warm:
                    worker.ask({"run": place})
                places[name], measurements[name] = (worker, place), []
        for turn in range(rounds):
            for contender in contenders[:: -1 if turn % 2 else 1]:
                if contender.name in measurements:
                    worker, place = places[contender.name]
                    with measurements.asking(contender):
                        measurements[contender.name].append(worker.ask({"run": place}))
    return measurements


class _Worker:
    def __init__(self, process: subprocess.Popen[str], errors: pathlib.Path) -> None:
        self._process, self._errors = process, errors

    def ask(self, request: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; its errors have the reason
        line = self._process.stdout.readline()
        if not line:
            output = self._errors.read_text().strip().splitlines() or ["it ended without output"]
            raise Unavailable(output[-1])
        return json.loads(line)


@contextlib.contextmanager
def _worker(contender: Contender) -> Iterator[_Worker]:
    with tempfile.TemporaryDirectory() as directory:
        errors = pathlib.Path(directory, "stderr")
        with errors.open("w") as stderr:
            try:
                process = subprocess.Popen(
                    [contender.python, "-m", "benchmarks.worker", str(contender.cores)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                    cwd=ROOT,
                    env=_environment() | contender.env,
                )
            except OSError as error:
                raise Unavailable(str(error)) from error
        try:
            yield _Worker(process, errors)
        finally:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """Without a compilation cache, so that compilation is measured; tracebacks end with the error."""
    inherited = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    return inherited | {"JAX_TRACEBACK_FILTERING": "off"}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and number of values."""
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    return {"median": median, "low": low, "high": high, "n": len(values)}


def ratio(measurements: Measurements, above: str, below: str) -> dict[str, float]:
    """`spread` of the ratio of two contenders' seconds in the same round."""
    pairs = zip(measurements[above], measurements[below], strict=True)
    return spread([one["seconds"] / other["seconds"] for one, other in pairs])


def fastest(measurements: Measurements, names: Sequence[str]) -> str:
    """Of ``names``, the contender with the lowest median time."""
    return min(names, key=lambda name: float(np.median([one["seconds"] for one in measurements[name]])))


def seconds_of(measurements: Measurements) -> dict[str, dict[str, float]]:
    """`spread` of each contender's seconds."""
    return {name: spread([one["seconds"] for one in rounds]) for name, rounds in measurements.items()}


def require_same_size(network: str, measurements: Measurements) -> None:
    """Raises AssertionError unless all contenders' networks have one number of parameters."""
    sizes = {one["parameters"] for rounds in measurements.values() for one in rounds}
    assert len(sizes) == 1, f"{network}: networks differ, {sizes} parameters"
