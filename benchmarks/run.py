"""Speed compared with alternatives: python -m benchmarks.run [--only=curve_vit,restart], or --device=gpu

On a CPU each figure is a ratio of two interleaved measurements: the median over rounds, with quartiles. Other versions
of Python and JAX get columns of their own: --stacks=/path/to/python,/path/to/another/python, each with the dependencies
of this package. PyTorch, mup and TensorFlow may be in yet another environment: --python=/path/to/python. On a GPU whole
training steps are compared with PyTorch's and with plain Flax (`benchmarks.gpu.table`).

Each result is written to benchmarks/results/<device>-<processor>.json when it is measured; what is not measured keeps
its result there, on a CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.contest import Unavailable
from benchmarks.figures import FIGURES, RESULTS, TOGETHER
from benchmarks.gpu import page as gpu_page
from benchmarks.gpu.table import Setting as GpuSetting
from benchmarks.gpu.table import run as run_on_gpu
from benchmarks.machine import gpu, processor, versions
from benchmarks.pages import document, file_name, line, table
from benchmarks.row import Row, unavailable
from benchmarks.setting import Setting, Stack
from depthmup_flax.storage.files import write_atomically
from depthmup_flax.util.types import Json

_THEIRS = ("torch", "mup", "tensorflow", "tensorflow_cpu")


def main() -> None:
    """Measures, writes JSON and prints the table."""
    parser = _parser()
    flags = parser.parse_args()
    if flags.show:
        result = json.loads(pathlib.Path(flags.show).read_text())
        print(gpu_page.table(result) if result["device"] == "gpu" else table([result]))
        return
    if flags.document:
        document()
        return
    pythons = flags.stacks.split(",")
    on_gpu = GpuSetting(flags.rounds, pythons[0], flags.python, flags.quick)
    known = list(on_gpu.cases if flags.device == "gpu" else FIGURES)
    parts = flags.only.split(",")
    for part in parts:
        if not any(part in name for name in known):
            parser.error(f"--only has {part!r}: must be a part of {'; '.join(known)}")
    names = [name for name in known if any(part in name for part in parts)]
    if flags.rounds < 1:
        parser.error(f"--rounds={flags.rounds}: must be at least 1")
    if flags.device == "gpu" and not (gpu() or flags.quick):
        parser.error("--device=gpu: nvidia-smi names no GPU here. Add --quick to try the programs on a CPU.")
    name = f"{file_name(flags.device, gpu() or processor())}.json"
    quick = pathlib.Path(tempfile.gettempdir(), "quick.json")
    out = pathlib.Path(flags.out or (quick if flags.quick else RESULTS / name))
    if flags.device == "gpu":
        result = run_on_gpu(on_gpu, out, names)
        print(gpu_page.table(result))
        gpu_page.draw(result, out.with_suffix(".png"))
    else:
        stacks = tuple(Stack(python) for python in pythons)
        print(table([run(Setting(flags.rounds, stacks, flags.python, flags.quick, flags.images), names, out)]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--only", default="", help="names or parts of names of figures, separated by commas")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each comparison")
    parser.add_argument("--stacks", default=sys.executable, help="interpreters with this package's dependencies")
    parser.add_argument("--python", default=sys.executable, help="interpreter with PyTorch, mup and TensorFlow")
    parser.add_argument("--images", default="", help="folder with train/ and test/ for the streaming figure")
    quick = "tiny sizes, to check that everything runs; --device=gpu then runs on a CPU, too"
    parser.add_argument("--quick", action="store_true", help=quick)
    out = "default: benchmarks/results/<device>-<processor>.json, with --quick a temporary file"
    parser.add_argument("--out", default="", help=out)
    parser.add_argument("--show", default="", help="print the table of a file of results and exit")
    written = "write the tables of benchmarks/results into reproduction/pages/performance.md, and exit"
    parser.add_argument("--document", action="store_true", help=written)
    return parser


def run(setting: Setting, names: Sequence[str], out: pathlib.Path) -> Json:
    """Measures ``names`` and writes them to ``out``; returns its new content."""
    hardware = f"{processor()}, {len(os.sched_getaffinity(0))} cores"
    result: Json = {"device": "cpu", "hardware": hardware, "figures": {}}
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
    return {
        "versions": versions(setting.python, _THEIRS),
        "day": time.strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[0], 1),
    }


def _as_json(row: Row) -> Json:
    return dataclasses.asdict(row) | {"value": None if math.isnan(row.value["median"]) else row.value}


if __name__ == "__main__":
    main()
