"""Contenders that take turns, each in a process that it has to itself or shares with others, and how two compare."""

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
Measurements = dict[str, list[dict[str, Any]]]  # contender -> what each round found


class Unavailable(Exception):
    """A contender cannot run here; the message is the last line that it wrote."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """What is measured.

    Attributes:
      name: for the table.
      make: ``module:function``, called once in the contender's process with ``args``; returns what is called in every
        round, ``() -> {"seconds": ...}`` with whatever else it found.
      args: JSON.
      process: contenders of one name share a process; empty is one of its own.
      python: the interpreter.
      env: set in the process, besides what is set here.
      cores: how many it may use; 0: all.
      optional: whether the others are measured without it where it cannot run.
    """

    name: str
    make: str
    args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    process: str = ""
    python: str = sys.executable
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    cores: int = 0
    optional: bool = False


def measure(contenders: Sequence[Contender], rounds: int, *, warm: bool = True) -> Measurements:
    """Makes all contenders and lets them run ``rounds`` times in turn, every other round backwards.

    ``warm``: each runs once before, for nothing.

    Raises:
      Unavailable: one of them cannot be made or run, and is not optional.
    """
    with contextlib.ExitStack() as stack:
        workers: dict[str, _Worker] = {}
        places = {}
        for contender in contenders:
            process = contender.process or contender.name
            if process not in workers:
                workers[process] = stack.enter_context(_worker(contender))
            worker = workers[process]
            try:
                place = worker.ask({"make": contender.make, "args": dict(contender.args)})
                if warm:
                    worker.ask({"run": place})
            except Unavailable:
                if contender.optional:
                    continue
                raise
            places[contender.name] = (worker, place)
        found: Measurements = {name: [] for name in places}
        for turn in range(rounds):
            for name in list(places)[:: -1 if turn % 2 else 1]:
                worker, place = places[name]
                found[name].append(worker.ask({"run": place}))
        return found


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
            pass  # it has ended, and said why
        line = self._process.stdout.readline()
        if not line:
            said = self._errors.read_text().strip().splitlines() or ["it ended without a word"]
            raise Unavailable(said[-1])
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
    """Without what is kept of an earlier compilation, which would not be measured; errors end with what is wrong."""
    kept = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    return kept | {"JAX_TRACEBACK_FILTERING": "off"}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and number."""
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    return {"median": median, "low": low, "high": high, "n": len(values)}


def ratio(found: Measurements, above: str, below: str) -> dict[str, float]:
    """`spread` of the ratio of two contenders' seconds in the same round."""
    pairs = zip(found[above], found[below], strict=True)
    return spread([one["seconds"] / other["seconds"] for one, other in pairs])


def fastest(found: Measurements, names: Sequence[str]) -> str:
    """The one of ``names`` with the lowest median of seconds."""
    return min(names, key=lambda name: float(np.median([one["seconds"] for one in found[name]])))
