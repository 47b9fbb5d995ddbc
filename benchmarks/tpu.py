"""Estimates steps on TPUs that are absent: python -m benchmarks.tpu [PART OF A CELL'S NAME ...]

A cell is a network, of this package or in plain Flax, on four chips of a v5e. Its seconds are the compiler's cycles,
and for kernels, which the compiler does not see into, the bundles that it schedules for them (`benchmarks.bundles`).
Results are written into benchmarks/results/tpu-v5e.json; delete a cell there to compile it again. It needs
pip install ".[plan]", and minutes of a CPU for each cell.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks import bundles
from benchmarks.figures import RESULTS
from benchmarks.gpu.hlo import parse
from depthmup_flax.plan.topologies import environment_for

TOPOLOGY = "v5e:2x2"
CHIPS = 4
CLOCK, PEAK = 1.5e9, 197e12  # of a v5e: Hz, FLOP/s of products in bfloat16
DUMP = pathlib.Path(tempfile.mkdtemp(prefix="bundles-"))
os.environ.update(environment_for(TOPOLOGY, os.environ))
os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {bundles.FLAGS}{DUMP}".strip()

import jax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from benchmarks.gpu import plain_flax  # noqa: E402
from benchmarks.gpu.cases import Case  # noqa: E402
from benchmarks.gpu.ours import products, random_data, run_config  # noqa: E402
from depthmup_flax.plan.compiled_step import compile_run  # noqa: E402
from depthmup_flax.plan.topologies import topology_devices  # noqa: E402
from depthmup_flax.storage.files import write_atomically  # noqa: E402

RECORD = RESULTS / "tpu-v5e.json"
# With the batch of one chip; the same networks as on GPUs.
NETWORKS: Mapping[str, Case] = {
    "ResNet-18, BatchNorm, 128 images of 224 px": Case("resnet", 64, 8, 0, 128, 224, 1000),
    "ViT-S/16, 128 images of 224 px": Case("vit", 384, 12, 6, 128, 224, 1000),
    "GPT, 8 x 1024 tokens": Case("gpt", 768, 12, 12, 8, 1024, 50304),
}


def ours(case: Case, **model_fields: Any) -> tuple[jax.stages.Compiled, int]:
    """The step that `depthmup train` compiles by default, of streamed examples, and the number of parameters."""
    config = run_config(case)
    config.model.update(model_fields)
    load = lambda fields: dataclasses.replace(random_data(fields, case), placement="stream")
    step = compile_run(config, topology_devices(TOPOLOGY), load)
    assert isinstance(step.compiled, jax.stages.Compiled)
    return step.compiled, step.experiment.parameters


def plain(case: Case) -> tuple[jax.stages.Compiled, int]:
    """The step of `benchmarks.gpu.plain_flax`, and the number of parameters."""
    mesh = Mesh(topology_devices(TOPOLOGY), "data")
    init, update = plain_flax.training(case)

    def placed(function: Callable[[], Any], spec: P) -> Any:
        place = NamedSharding(mesh, spec)
        return jax.tree.map(lambda x: x.update(sharding=place), jax.eval_shape(function))

    state, (x, y) = placed(init, P()), placed(lambda: plain_flax.batch(case), P("data"))
    compiled = jax.jit(update, donate_argnums=0).lower(state, x, y).compile()
    return compiled, sum(leaf.size for leaf in jax.tree.leaves(state[0]))


FORMS: Mapping[str, Callable[..., tuple[jax.stages.Compiled, int]]] = {"plain Flax": plain, "ours": ours}


def cells() -> Iterator[tuple[str, str, Case, dict[str, str]]]:
    """Network, form, case and fields of ``config.model`` of each cell; plain Flax has no field for a stream."""
    for title, case in NETWORKS.items():
        for form in FORMS:
            yield title, form, case, {}
        if case.heads:
            yield f"{title}, stream in bfloat16", "ours", case, {"stream_dtype": "bfloat16"}


def cell(form: str, case: Case, **model_fields: str) -> dict[str, Any]:
    """What the compiler says of a step on `CHIPS`, with the batch of ``case`` on each."""
    processor = time.process_time()
    compiled, parameters = FORMS[form](dataclasses.replace(case, batch=CHIPS * case.batch), **model_fields)
    spent = time.process_time() - processor
    text = compiled.as_text() or ""
    kinds, kernels = cycles(text), bundles.kernels(text, DUMP)
    without, inside = sum(kinds.values()), sum(times * each for times, each in kernels.values())
    largest = sorted(kinds.items(), key=lambda kind: -kind[1])[:12]
    memory = compiled.memory_analysis()
    return {
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu", "flax", "optax")},
        "parameters": parameters,
        "compile_processor_seconds": spent,
        "products_seconds": products(case) / PEAK,
        "temporary_bytes": memory.temp_size_in_bytes,
        "seconds": (without + inside) / CLOCK,
        "kernels_seconds": inside / CLOCK,
        "kernels": kernels,
        "share_without_kernels": {kind: round(count / without, 4) for kind, count in largest},
    }


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
    for title, form, case, model_fields in cells():
        name = f"{title}: {form}"
        if name in json.loads(RECORD.read_text())["cells"] or not all(part in name for part in sys.argv[1:]):
            continue
        estimated = cell(form, case, **model_fields)
        print(name, json.dumps(estimated), flush=True)
        record = json.loads(RECORD.read_text())  # another process may have written a cell
        record["cells"][name] = estimated
        write_atomically(RECORD, json.dumps(record, indent=1) + "\n")
        for path in DUMP.iterdir():
            path.unlink()
        jax.clear_caches()


if __name__ == "__main__":
    main()
