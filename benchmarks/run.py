"""Speed compared with alternatives: python -m benchmarks.run [--device=cpu|gpu] [--only=curve,restart]

Each figure is a ratio of two interleaved measurements: the median over rounds, with quartiles. Each result is written
to benchmarks/results/<device>.json when it is measured; figures that are not measured keep their results there.
PyTorch, mup and TensorFlow may be in another virtual environment: --python=/path/to/its/python.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.contest import Unavailable
from benchmarks.figures import FIGURES, RESULTS
from benchmarks.pages import document, line, table
from benchmarks.row import Row, unavailable
from benchmarks.setting import Setting
from depthmup_flax.types import Json
from depthmup_flax.workdir.files import write_atomically

_VERSIONS = ("jax", "jaxlib", "flax", "optax", "torch", "mup", "tensorflow", "tensorflow_cpu")


def main() -> None:
    """Measures, writes JSON and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--only", default="", help=f"comma-separated figures: {', '.join(FIGURES)}")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each comparison")
    parser.add_argument("--python", default=sys.executable, help="interpreter with PyTorch, mup and TensorFlow")
    parser.add_argument("--images", default="", help="folder with train/ and test/ for the streaming figure")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument(
        "--out", default="", help="default: benchmarks/results/<device>.json, with --quick a temporary file"
    )
    parser.add_argument("--show", default="", help="print the table of a file of results and exit")
    parser.add_argument(
        "--document",
        action="store_true",
        help="write the tables of benchmarks/results into README.md and docs/performance.md, and exit",
    )
    flags = parser.parse_args()
    if flags.show:
        print(table(json.loads(pathlib.Path(flags.show).read_text())))
        return
    if flags.document:
        document()
        return
    names = [name for name in flags.only.split(",") if name] or list(FIGURES)
    unknown = sorted(set(names) - set(FIGURES))
    if unknown:
        parser.error(f"--only has {unknown[0]!r}: must be among {', '.join(FIGURES)}")
    if flags.rounds < 1:
        parser.error(f"--rounds={flags.rounds}: must be at least 1")
    quick = pathlib.Path(tempfile.gettempdir(), "quick.json")
    out = pathlib.Path(flags.out or (quick if flags.quick else RESULTS / f"{flags.device}.json"))
    setting = Setting(flags.device, flags.rounds, flags.python, flags.quick, flags.images)
    print(table(run(setting, names, out)))


def run(setting: Setting, names: Sequence[str], out: pathlib.Path) -> Json:
    """Measures ``names`` and writes them to ``out``; returns its new content."""
    result: Json = json.loads(out.read_text()) if out.exists() else {"figures": {}}
    out.parent.mkdir(parents=True, exist_ok=True)
    facts = machine(setting)
    for name in names:
        started = time.perf_counter()
        rows: list[Json] = []

        def add(row: Row, rows: list[Json] = rows, name: str = name, started: float = started) -> None:
            rows.append(_as_json(row))
            print(line(rows[-1]), flush=True)
            duration = round(time.perf_counter() - started)
            result["figures"][name] = {"rows": rows, "rounds": setting.rounds, "took_s": duration, **facts}
            write_atomically(out, json.dumps(result, indent=1, allow_nan=False) + "\n")

        try:
            for row in FIGURES[name](setting):
                add(row)
        except Unavailable as error:
            add(unavailable(name.replace("_", " "), str(error)))
    return result


def machine(setting: Setting) -> Json:
    """Hardware, versions, date and load."""
    versions = {name: _version(name, setting.python) for name in _VERSIONS}
    return {
        "hardware": _gpu() if setting.device == "gpu" else f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "versions": {"python": platform.python_version(), **{k: v for k, v in versions.items() if v}},
        "day": time.strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[0], 1),
    }


def _version(name: str, python: str) -> str:
    """Version of a package in the interpreter that uses it; empty if it is not installed."""
    program = f"import importlib.metadata as m; print(m.version({name!r}))"
    where = python if name in ("torch", "mup", "tensorflow", "tensorflow_cpu") else sys.executable
    try:
        return subprocess.run([where, "-c", program], capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def _processor() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def _gpu() -> str:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True).stdout.strip() or "no GPU"
    except OSError:
        return "no GPU"


def _as_json(row: Row) -> Json:
    return dataclasses.asdict(row) | {"value": None if math.isnan(row.value["median"]) else row.value}


if __name__ == "__main__":
    main()
