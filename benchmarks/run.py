"""Speed compared with alternatives: python -m benchmarks.run [--device=cpu|gpu] [--only=curve_vit,restart]

Each figure is a ratio of two interleaved measurements: the median over rounds, with quartiles. Each result is written
to benchmarks/results/<device>-<processor>.json when it is measured; what is not measured keeps its result there. Other
versions of Python and JAX get columns of their own: --stacks=/path/to/python,/path/to/another/python, each with the
dependencies of this package. PyTorch, mup and TensorFlow may be in yet another environment: --python=/path/to/python.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.contest import Unavailable
from benchmarks.figures import FIGURES, RESULTS, TOGETHER
from benchmarks.pages import document, line, table
from benchmarks.row import Row, unavailable
from benchmarks.setting import Setting, Stack
from depthmup_flax.util.types import Json
from depthmup_flax.workdir.files import write_atomically

_THEIRS = ("torch", "mup", "tensorflow", "tensorflow_cpu")


def main() -> None:
    """Measures, writes JSON and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--only", default="", help=f"comma-separated figures: {', '.join(FIGURES)}")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each comparison")
    parser.add_argument("--stacks", default=sys.executable, help="interpreters with this package's dependencies")
    parser.add_argument("--python", default=sys.executable, help="interpreter with PyTorch, mup and TensorFlow")
    parser.add_argument("--images", default="", help="folder with train/ and test/ for the streaming figure")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument(
        "--out", default="", help="default: benchmarks/results/<device>-<processor>.json, with --quick a temporary file"
    )
    parser.add_argument("--show", default="", help="print the table of a file of results and exit")
    parser.add_argument(
        "--document",
        action="store_true",
        help="write the tables of benchmarks/results into docs/performance.md, and exit",
    )
    flags = parser.parse_args()
    if flags.show:
        print(table([json.loads(pathlib.Path(flags.show).read_text())]))
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
    stacks = tuple(Stack(python) for python in flags.stacks.split(","))
    setting = Setting(flags.device, flags.rounds, stacks, flags.python, flags.quick, flags.images)
    quick = pathlib.Path(tempfile.gettempdir(), "quick.json")
    out = pathlib.Path(flags.out or (quick if flags.quick else RESULTS / f"{_file_name(setting)}.json"))
    print(table([run(setting, names, out)]))


def run(setting: Setting, names: Sequence[str], out: pathlib.Path) -> Json:
    """Measures ``names`` and writes them to ``out``; returns its new content."""
    result: Json = {"device": setting.device, "hardware": hardware(setting), "figures": {}}
    if out.exists():
        result["figures"] = json.loads(out.read_text())["figures"]
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        together = name in TOGETHER
        for part in [setting] if together else [dataclasses.replace(setting, stacks=(one,)) for one in setting.stacks]:
            _measure(part, name, result, out)
    return result


def _measure(setting: Setting, name: str, result: Json, out: pathlib.Path) -> None:
    """Replaces the rows of a figure and the setting's stacks in ``result`` and in the file ``out``."""
    started = time.perf_counter()
    titles = [stack.name for stack in setting.stacks]
    earlier = result["figures"].get(name, {"rows": [], "measured": {}})
    others = [row for row in earlier["rows"] if row["stack"] not in titles]
    rows: list[Json] = []

    def add(row: Row) -> None:
        rows.append(_as_json(row if row.stack else dataclasses.replace(row, stack=titles[0])))
        print(line([rows[-1]]), flush=True)
        facts = {"rounds": setting.rounds, "took_s": round(time.perf_counter() - started), **environment(setting)}
        measured = {stack.name: {**facts, "versions": stack.facts | facts["versions"]} for stack in setting.stacks}
        result["figures"][name] = {"rows": others + rows, "measured": earlier["measured"] | measured}
        write_atomically(out, json.dumps(result, indent=1, allow_nan=False) + "\n")

    try:
        for row in FIGURES[name](setting):
            add(row)
    except Unavailable as error:
        add(unavailable(name.replace("_", " "), str(error)))


def environment(setting: Setting) -> Json:
    """Versions of the alternatives, date and load."""
    versions = {name: _version(name, setting.python) for name in _THEIRS}
    return {
        "versions": {name: version for name, version in versions.items() if version},
        "day": time.strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[0], 1),
    }


def hardware(setting: Setting) -> str:
    """The processor, with the number of cores that may be used."""
    return _gpu() if setting.device == "gpu" else f"{processor()}, {len(os.sched_getaffinity(0))} cores"


def _file_name(setting: Setting) -> str:
    name = _gpu() if setting.device == "gpu" else processor()
    return f"{setting.device}-{'-'.join(re.findall(r'[a-z0-9]+', name.lower()))}"


def _version(name: str, python: str) -> str:
    """Version of a package in an interpreter; empty if it is not installed."""
    program = f"import importlib.metadata as m; print(m.version({name!r}))"
    try:
        return subprocess.run([python, "-c", program], capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def processor() -> str:
    """Name, family and model of the processor: virtual machines give one name to several generations."""
    pairs = [line.partition(":") for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()]
    of_last = {name.strip(): value.strip() for name, _, value in pairs}
    name = of_last.get("model name", platform.processor())
    if "cpu family" not in of_last:
        return name
    return f"{name} (family {of_last['cpu family']}, model {of_last['model']})"


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
