"""Estimates steps on TPUs that are absent: python -m benchmarks.tpu [PART OF A TITLE ...]

Each cell is a ``depthmup plan`` whose command is in the record, benchmarks/results/tpu-*.json; a cell that is there is
not compiled again. It needs pip install ".[plan]" and minutes of a CPU for each cell.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.figures import RESULTS
from benchmarks.gpu.hlo import parse
from depthmup_flax.plan.topologies import environment_for
from depthmup_flax.storage.files import write_atomically

TOPOLOGY = "v5e:2x2"
CLOCK, PEAK = 1.5e9, 197e12  # of a v5e: Hz, FLOP/s of products in bfloat16
os.environ.update(environment_for(TOPOLOGY, os.environ))

import jax  # noqa: E402

from depthmup_flax.commands import plan  # noqa: E402
from depthmup_flax.commands.parser import Parser  # noqa: E402
from depthmup_flax.data.blank import PlannedData  # noqa: E402
from depthmup_flax.plan.compiled_step import compile_run  # noqa: E402
from depthmup_flax.plan.summary import make_plan  # noqa: E402
from depthmup_flax.plan.topologies import topology_devices  # noqa: E402

RECORD = RESULTS / "tpu-v5e.json"
_BFLOAT16 = "--config.model.dtype=bfloat16"
_RESNET = f"--config=imagenet_resnet18 {_BFLOAT16} --config.model.norm=batch --config.train.batch_size=512"
_VIT = (
    f"--config=imagenet_vit {_BFLOAT16} --config.model.norm=layer --config.model.base_width=96 "
    "--config.model.num_heads=6 --config.data.augment=none --config.train.batch_size=512"
)
_GPT = (
    f"--config=shakespeare_gpt --vocabulary=50304 {_BFLOAT16} --config.model.width=768 --config.model.base_width=192 "
    "--config.model.num_heads=12 --config.data.context=1024 --config.train.batch_size=64"
)
NETWORKS: Mapping[str, str] = {
    "ResNet-18, BatchNorm, 128 images of 224 px": _RESNET,
    "ResNet-34, the same": f"{_RESNET} --config.model.depth=16 --config.model.stage_sizes=3,4,6,3",
    **{
        f"ViT-S/16, {depth} layers, 128 images of 224 px": f"{_VIT} --config.model.depth={depth}"
        for depth in (4, 6, 8, 12)
    },
    "GPT of width 768, 12 layers, 16 x 1024 tokens": f"{_GPT} --config.model.depth=12",
}
FORMS: Mapping[str, str] = {
    "loop": "--config.model.scan=True",
    "unrolled": "--config.model.scan=False",
}


def cell(command: str) -> dict[str, Any]:
    """What the compiler says of ``depthmup plan`` with the flags of ``command``."""
    parser = Parser("plan", plan.__doc__ or "")
    plan.define(parser)
    config = parser.parsed(shlex.split(command)).config.resolved()
    started, processor = time.perf_counter(), time.process_time()
    step = compile_run(config, topology_devices(TOPOLOGY), PlannedData())
    planned = make_plan(step)
    result = {
        "command": f"depthmup plan {command} --topology={TOPOLOGY} --json",
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu", "flax", "optax")},
        "compile_seconds": time.perf_counter() - started,
        "compile_processor_seconds": time.process_time() - processor,
        "products_seconds": planned.gflops * 1e9 / PEAK,
        "temporary_bytes": planned.memory.temporaries,
    }
    if isinstance(step.compiled, jax.stages.Compiled):
        text = step.compiled.as_text() or ""
        if keep := os.environ.get("KEEP_HLO"):
            with open(keep, "w") as file:
                file.write(text)
        kinds = cycles(text)
        total = sum(kinds.values())
        result |= {
            "seconds": total / CLOCK,
            "share": {kind: round(count / total, 4) for kind, count in sorted(kinds.items(), key=lambda x: -x[1])[:12]},
        }
    return result


def cycles(text: str) -> dict[str, int]:
    """The kinds of instructions of a compiled program -> the cycles of a step that its compiler estimates."""
    counts: dict[str, int] = {}
    program = parse(text)
    for instruction, _, times in program.executed():
        if found := re.search(r'"estimated_cycles":"(\d+)"', instruction.attributes):
            kind = re.sub(r"[\d.]+$", "", instruction.name)
            if int(found[1]) < 2**40:  # more: unknown
                counts[kind] = counts.get(kind, 0) + times * int(found[1])
    return counts


def main() -> None:
    """Compiles the missing cells of the chosen rows and writes each into the record."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)  # seconds of compilation are part of a cell
    for title, network in NETWORKS.items():
        for form, flags in FORMS.items():
            name = f"{title}: {form}"
            if not all(part in name for part in sys.argv[1:]):
                continue
            record = json.loads(RECORD.read_text()) if RECORD.exists() else {"device": "tpu", "cells": {}}
            if name in record["cells"]:
                continue
            result = cell(f"{network} {flags}")
            print(name, json.dumps(result), flush=True)
            record["cells"][name] = result
            write_atomically(RECORD, json.dumps(record, indent=1) + "\n")
            jax.clear_caches()


if __name__ == "__main__":
    main()
