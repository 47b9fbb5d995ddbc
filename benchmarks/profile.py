"""Where a training step's time goes: python -m benchmarks.profile --model='{"name": "vit", "width": 128, "depth": 6}'

Takes a trace with JAX's profiler and sums its events by kind of operation. On a CPU the sums are over all threads and
may exceed the time of the step.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
import tempfile
from collections.abc import Iterator

import jax

from benchmarks import ours


def profiled(model: dict[str, object], batch: int, side: int, steps: int) -> tuple[float, dict[str, float]]:
    """Seconds of a step, and of each kind of operation in it."""
    measure = ours.train_step(model, batch, side, seconds=0.0)
    measure()
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            seconds = sum(measure()["seconds"] for _ in range(steps)) / steps
        (path,) = pathlib.Path(directory).rglob("*.xplane.pb")
        events: collections.defaultdict[str, float] = collections.defaultdict(float)
        for name, nanoseconds in _events(path):
            events[name] += nanoseconds / 1e9 / steps
    return seconds, dict(sorted(events.items(), key=lambda item: -item[1]))


def _events(path: pathlib.Path) -> Iterator[tuple[str, float]]:
    data = jax.profiler.ProfileData.from_file(str(path))
    for plane in data.planes:
        for line in plane.lines:
            # "XLA Ops" on a GPU; the threads, "tf_XLA...", on a CPU.
            if "XLA" in line.name and line.name not in ("XLA Modules", "XLA TraceMe"):
                for event in line.events:
                    yield re.sub(r"[.\d]+$", "", event.name), event.duration_ns


def main() -> None:
    """Prints the table of operations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=json.loads, required=True, help="fields of config.model, as JSON")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--top", type=int, default=25)
    flags = parser.parse_args()
    seconds, events = profiled(flags.model, flags.batch, flags.side, flags.steps)
    print(f"{1e3 * seconds:.1f} ms per step")
    for name, duration in list(events.items())[: flags.top]:
        print(f"{1e3 * duration:10.2f} ms  {name}")


if __name__ == "__main__":
    main()
