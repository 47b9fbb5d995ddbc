"""Estimates steps on TPUs that are absent: python -m benchmarks.tpu [PART OF A CELL'S NAME ...]

A cell is a network and a form of its layers, or the time of its products alone, which needs no compilation. Results are
written into benchmarks/results/tpu-v5e.json with the command of each; a cell that is there is not compiled again. It
needs pip install ".[plan]", and minutes of a CPU for each cell.
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

FOUR_CHIPS, ONE_CHIP = "--topology=v5e:2x2", "--topology=v5e:1x1"
CLOCK, PEAK = 1.5e9, 197e12  # of a v5e: Hz, FLOP/s of products in bfloat16
os.environ.update(environment_for("v5e:2x2", os.environ))

import jax  # noqa: E402

from depthmup_flax.commands import plan  # noqa: E402
from depthmup_flax.commands.parser import Parser  # noqa: E402
from depthmup_flax.data.blank import PlannedData  # noqa: E402
from depthmup_flax.devices import sharding  # noqa: E402
from depthmup_flax.plan.compiled_step import compile_run  # noqa: E402
from depthmup_flax.plan.summary import make_plan  # noqa: E402
from depthmup_flax.plan.topologies import topology_devices  # noqa: E402
from depthmup_flax.trainer.engine.device_batches import abstract_train_data  # noqa: E402
from depthmup_flax.trainer.engine.from_config import build  # noqa: E402
from depthmup_flax.trainer.engine.program import ShardedProgram  # noqa: E402
from depthmup_flax.util.flops import count_flops  # noqa: E402

RECORD = RESULTS / "tpu-v5e.json"
_BFLOAT16 = "--config.model.dtype=bfloat16"
_RESNET = f"--config=imagenet_resnet18 {_BFLOAT16} --config.model.norm=batch --config.train.batch_size=512 {FOUR_CHIPS}"
_RESNET_34 = f"{_RESNET} --config.model.depth=16 --config.model.stage_sizes=3,4,6,3"
_CIFAR = f"--config=cifar10_resnet18 {_BFLOAT16} --config.model.norm=batch --config.train.batch_size=128 {ONE_CHIP}"
_VIT = f"--config=imagenet_vit {_BFLOAT16} --config.model.norm=layer --config.data.augment=none"
_VIT_S = f"{_VIT} --config.model.base_width=96 --config.model.num_heads=6 --config.train.batch_size=512 {FOUR_CHIPS}"
_GPT = (
    f"--config=shakespeare_gpt {_BFLOAT16} --config.model.width=768 --config.model.base_width=192 "
    f"--config.model.num_heads=12 --config.data.context=1024 --config.train.batch_size=32 {FOUR_CHIPS}"
)
NETWORKS: Mapping[str, str] = {
    "ResNet-18, BatchNorm, 128 images of 224 px": _RESNET,
    "ResNet-34, BatchNorm, 128 images of 224 px": _RESNET_34,
    **{
        f"ViT-S/16, {depth} layers, 128 images of 224 px": f"{_VIT_S} --config.model.depth={depth}"
        for depth in (4, 6, 8, 12)
    },
    "GPT of width 768, 12 layers, 8 x 1024 tokens": f"{_GPT} --config.model.depth=12",
    "ResNet-18, BatchNorm, 128 images of 32 px": _CIFAR,
}
FORMS: Mapping[str, str] = {
    "products": "",
    "loop": " --config.model.scan=True",
    "two layers at a time": " --config.model.scan=2",
    "unrolled": " --config.model.scan=False",
}


def cell(form: str, flags: str) -> dict[str, Any]:
    """What the compiler says of ``depthmup plan`` with ``flags``; of products, what the traced program says."""
    parser = Parser("plan", plan.__doc__ or "")
    plan.define(parser)
    args = parser.parsed(shlex.split(flags))
    config, devices = args.config.resolved(), topology_devices(args.topology)
    result: dict[str, Any] = {
        "command": f"depthmup plan {flags} --json",
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu", "flax", "optax")},
    }
    if form == "products":
        experiment = build(config, load=PlannedData())
        mesh = sharding.make_mesh(config.mesh, devices)
        traced = ShardedProgram(experiment, mesh, abstract_train_data(experiment.dataset, mesh)).traced()
        return result | {"products_seconds": count_flops(traced.jaxpr) / mesh.size / PEAK}
    processor = time.process_time()
    step = compile_run(config, devices, PlannedData())
    result["compile_processor_seconds"] = time.process_time() - processor
    planned = make_plan(step)
    result |= {
        "products_seconds": planned.gflops * 1e9 / PEAK,
        "temporary_bytes": planned.memory.temporaries,
    }
    if isinstance(step.compiled, jax.stages.Compiled):
        kinds = cycles(step.compiled.as_text() or "")
        total = sum(kinds.values())
        largest = sorted(kinds.items(), key=lambda kind: -kind[1])[:12]
        result |= {"seconds": total / CLOCK, "share": {kind: round(count / total, 4) for kind, count in largest}}
    return result


def cycles(text: str) -> dict[str, int]:
    """The kinds of instructions of a compiled program -> the cycles of a step that its compiler estimates."""
    counts: dict[str, int] = {}
    for instruction, _, times in parse(text).executed():
        if found := re.search(r'"estimated_cycles":"(\d+)"', instruction.attributes):
            kind = re.sub(r"[\d.]+$", "", instruction.name)
            if int(found[1]) < 2**40:  # more: unknown
                counts[kind] = counts.get(kind, 0) + times * int(found[1])
    return counts


def main() -> None:
    """Writes the missing cells whose names have all of the given parts into the record."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)  # the time of a compilation is part of a cell
    for title, network in NETWORKS.items():
        for form, flags in FORMS.items():
            name = f"{title}: {form}"
            record = json.loads(RECORD.read_text())
            if name in record["cells"] or not all(part in name for part in sys.argv[1:]):
                continue
            record["cells"][name] = cell(form, network + flags)
            print(name, json.dumps(record["cells"][name]), flush=True)
            write_atomically(RECORD, json.dumps(record, indent=1) + "\n")
            jax.clear_caches()


if __name__ == "__main__":
    main()
