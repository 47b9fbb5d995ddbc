"""Contenders that start a process: time to the first step, of an import, of a search. Imports no JAX or PyTorch."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.contest import ROOT
from benchmarks.timing import timed

_CONFIG = """\
from depthmup_flax.config import default_config

def get_config():
    config = default_config({model!r})
    config.data.update(name="synthetic", image_size=32)
    config.train.update(log_every=1, steps=1000, batch_size=4, eval_batch_size=4)
    return config
"""


def first_step(fields: Sequence[str]) -> Callable[[], dict[str, float]]:
    """Time until ``train.py`` prints the loss of a step: with an empty cache, then again in the same work directory.

    Args:
      fields: the model's name, then flags.
    """

    def start(directory: pathlib.Path) -> float:
        command = [sys.executable, "train.py", f"--config={directory / 'config.py'}", f"--workdir={directory / 'run'}"]
        started = time.perf_counter()
        own = os.environ | {"XDG_CACHE_HOME": str(directory / "cache")}
        process = subprocess.Popen([*command, *fields[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=own)
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("step ")), "")
        seconds = time.perf_counter() - started
        process.send_signal(signal.SIGTERM)
        process.communicate()
        assert line, "train.py ended before its first step"
        return seconds

    def measure() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as scratch:
            directory = pathlib.Path(scratch)
            (directory / "config.py").write_text(_CONFIG.format(model=fields[0]))
            return {"cold": start(directory), "again": start(directory)}

    return measure


def importing(statement: str) -> Callable[[], dict[str, float]]:
    """Time of a Python process that executes an import ``statement``."""
    command = [sys.executable, "-c", statement]
    return lambda: {"seconds": timed(lambda: subprocess.run(command, cwd=ROOT, check=True))}


_TUNED = """\
from depthmup_flax.config import default_config

def get_config():
    config = default_config({model[name]!r})
    config.model.update({model!r})
    config.model.update(width=4 * config.model.width, depth=2 * config.model.depth)
    config.data.update(name="synthetic", image_size={side}, train_examples={examples}, test_examples=500)
    config.train.update(steps={steps}, average_steps={steps}, log_every={steps}, batch_size={batch})
    config.optimizer.learning_rate = {rate}
    return config
"""


def tune(
    model: Mapping[str, Any], octaves: int, seeds: int, runs: int | None = None, **fields: float
) -> Callable[[], dict[str, float]]:
    """``depthmup tune`` of a proxy of the sizes of ``model``, with nothing compiled before.

    Args:
      model, octaves, seeds: of the search.
      runs: the number that it must take, as ``tune`` extends a grid whose best rate is at its end; ``None``: any.
      **fields: ``rate`` in the middle of the grid, ``steps``, ``batch``, ``side`` and ``examples``.
    """

    def measure() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as scratch:
            directory = pathlib.Path(scratch)
            (directory / "config.py").write_text(_TUNED.format(model=dict(model), **fields))
            flags = {
                "config": directory / "config.py",
                "workdir": directory / "search",
                "proxy.width": model["width"],
                "proxy.depth": model["depth"],
                "octaves": octaves,
                "seeds": seeds,
                "tune": "learning_rate",
            }
            command = [sys.executable, "-m", "depthmup_flax", "tune", *(f"--{k}={v}" for k, v in flags.items())]
            own = os.environ | {"XDG_CACHE_HOME": str(directory / "cache")}
            seconds = timed(lambda: subprocess.run(command, cwd=ROOT, env=own, check=True, stdout=subprocess.DEVNULL))
            (records,) = (path.read_text().splitlines() for path in directory.rglob("records.jsonl"))
            assert runs in (None, len(records)), f"tune took {len(records)} runs, not {runs}"
            return {"seconds": seconds, "parameters": json.loads(records[0])["parameters"]}

    return measure


def torch_search(**args: Any) -> Callable[[], dict[str, float]]:
    """`benchmarks.theirs.search` in a process of its own."""
    call = f"search(**json.loads({json.dumps(args)!r}))"
    command = [sys.executable, "-c", f"import json; from benchmarks.theirs import search; print(json.dumps({call}))"]

    def measure() -> dict[str, float]:
        started = time.perf_counter()
        found = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "parameters": json.loads(found.splitlines()[-1])["parameters"]}

    return measure
