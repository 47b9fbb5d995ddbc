"""Writes the table of estimated steps in performance.md: python -m benchmarks.gpu.steps [PART OF A TITLE ...]

With parts of titles it prints only those rows. They are the cases that ``python -m benchmarks.run --device=gpu``
measures, compiled for one H200, which need not be present: pip install "jax[cuda12]", of jax's version; a CPU suffices.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu import absent_gpus

absent_gpus.prepare()
ROOT = pathlib.Path(__file__).parents[2]

import jax  # noqa: E402

from benchmarks.gpu.cases import CASES, Case  # noqa: E402
from benchmarks.gpu.ours import random_data, run_config, sweep_config  # noqa: E402
from benchmarks.gpu.roofline import H200, step_kernels  # noqa: E402
from depthmup_flax.data import LoadOnce  # noqa: E402
from depthmup_flax.plan.compiled_step import PlannedStep, compile_run, compile_sweep  # noqa: E402
from depthmup_flax.plan.summary import memory_of  # noqa: E402

PAGE = ROOT / "reproduction" / "pages" / "performance.md"
START, END = "<!-- steps: python -m benchmarks.gpu.steps -->", "<!-- end of steps -->"
FORMS: Mapping[str, Mapping[str, Any]] = {
    "a loop over layers, XLA's attention": {"scan": True, "remat": "none", "attention": "xla"},
    "default": {},
    "bfloat16 between layers": {"stream_dtype": "bfloat16"},
}
# The first form at commit 7efd054, by title.
BEFORE = {
    "ViT-S/16, 256 images of 224 px": "60.6; 23; 1,754; 232",
    "GPT, 163 M, 16 x 1024 tokens": "98.1; 28; 1,685; 343",
    "ResNet-18, BatchNorm, 256 images of 224 px": "13.2; 4.1; 610; 40.7",
    "ViT-B/16, 128 images of 224 px": "70.7; 23; 1,754; 236",
    "sweep of ResMLP 128x8, a run": "0.0163; 0.062; 137; 0.636; 27 lanes",
    "sweep of ResMLP 128x128, a run": "0.214; 0.64; 1,817; 8.84; 27 lanes",
}
HEADER = f"| ms at least; GiB; kernels; GB | before | {' | '.join(FORMS)} |\n|---|---|{'---|' * len(FORMS)}"


def row(title: str, case: Case) -> str:
    """The row of a case."""
    return f"| {' | '.join([title, BEFORE[title], *(_cell(case, fields) for fields in FORMS.values())])} |"


def _cell(case: Case, fields: Mapping[str, Any]) -> str:
    """Milliseconds, GiB of temporary memory, kernels, GB that they move; a sweep's milliseconds are for a run."""
    if "stream_dtype" in fields and not case.heads:
        return ""
    step = _compiled(case, {name: value for name, value in fields.items() if name != "attention" or case.heads})
    kinds = step_kernels(step.compiled, H200)
    runs = step.lanes.per_device if step.lanes else 1
    kernels, moved = (sum(getattr(kind, what) for kind in kinds) for what in ("times", "bytes"))
    lanes = f"; {runs} lanes" if step.lanes else ""
    gib = memory_of(step, None).temporaries / 2**30
    return (
        f"**{1e3 * sum(kind.seconds for kind in kinds) / runs:.3g}**; {gib:.2g}; {kernels:,}; {moved / 1e9:.3g}{lanes}"
    )


def _compiled(case: Case, fields: Mapping[str, Any]) -> PlannedStep:
    devices = [absent_gpus.device("h200")]
    if case.in_lanes:
        config = sweep_config(case)
        config.base.model.update(fields)
        return compile_sweep(config, devices, LoadOnce(), 0, None)
    config = run_config(case)
    config.model.update(fields)
    return compile_run(config, devices, lambda data: random_data(data, case))


def main() -> None:
    """Prints the rows; replaces the table in the page if all were asked for."""
    jax.config.update("jax_platforms", "cpu")
    chosen = {title: case for title, case in CASES.items() if all(part in title for part in sys.argv[1:])}
    lines = []
    for title, case in chosen.items():
        lines.append(row(title, case))
        print(lines[-1], flush=True)
        jax.clear_caches()
    if not sys.argv[1:]:
        before, _, after = PAGE.read_text().partition(START)
        table = "\n".join([HEADER, *lines])
        PAGE.write_text(f"{before}{START}\n\n{table}\n\n{after[after.index(END) :]}")


if __name__ == "__main__":
    main()
