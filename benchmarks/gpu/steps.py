"""Estimates steps on an H200 that is absent: python -m benchmarks.gpu.steps [PART OF A TITLE ...]

With parts of titles only those rows. They are the cases that ``python -m benchmarks.run --device=gpu`` measures,
compiled for one H200, which need not be present: pip install "jax[cuda12]", of jax's version; a CPU suffices. Results
are written into benchmarks/results/gpu-estimates-h200.json.
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.figures import RESULTS
from benchmarks.gpu import absent_gpus

absent_gpus.prepare()

import jax  # noqa: E402

from benchmarks.gpu.cases import CASES, Case  # noqa: E402
from benchmarks.gpu.ours import random_data, run_config, sweep_config  # noqa: E402
from benchmarks.gpu.roofline import H200, step_kernels  # noqa: E402
from depthmup_flax.data import LoadOnce  # noqa: E402
from depthmup_flax.plan.compiled_step import PlannedStep, compile_run, compile_sweep  # noqa: E402
from depthmup_flax.plan.summary import memory_of  # noqa: E402

RECORD = RESULTS / "gpu-estimates-h200.json"
FORMS: Mapping[str, Mapping[str, Any]] = {
    "a loop over layers, XLA's attention": {"scan": True, "remat": "none", "attention": "xla"},
    "default": {},
    "bfloat16 between layers": {"stream_dtype": "bfloat16"},
}


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
    """Writes the rows into the record."""
    jax.config.update("jax_platforms", "cpu")
    record = json.loads(RECORD.read_text())
    for title, case in CASES.items():
        if all(part in title for part in sys.argv[1:]):
            row = {form: _cell(case, fields) for form, fields in FORMS.items()}
            record["cells"][title] = {form: text for form, text in row.items() if text}
            record["day"] = datetime.datetime.now(datetime.UTC).date().isoformat()
            record["versions"] = {"python": platform.python_version(), "jax": jax.__version__}
            print(title, row, flush=True)
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
            jax.clear_caches()


if __name__ == "__main__":
    main()
