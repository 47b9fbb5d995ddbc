"""Writes the table of planned GPU sweeps in reproduction.md: python -m reproduction.pages.gpu_plans [SWEEP ...]

With names of sweeps it prints only their rows.

Compiles each sweep's largest program for one H100, which need not be present:
pip install jax-cuda12-pjrt jax-cuda12-plugin, of jax's version. Hours are lower bounds, kernel by kernel; other
programs count by their cost relative to the largest.
"""

from __future__ import annotations

import pathlib
import sys

from benchmarks.gpu import absent_gpus

absent_gpus.prepare()

import jax  # noqa: E402

from benchmarks.gpu.roofline import H100, step_kernels  # noqa: E402
from depthmup_flax.config import from_file  # noqa: E402
from depthmup_flax.data.blank import PlannedData  # noqa: E402
from depthmup_flax.plan.compiled_step import compile_sweep  # noqa: E402
from depthmup_flax.plan.summary import make_plan  # noqa: E402
from depthmup_flax.search.sweep.grid import expand  # noqa: E402
from depthmup_flax.search.sweep.groups import plan  # noqa: E402
from reproduction.pages.generated_parts import with_part  # noqa: E402

PAGE = pathlib.Path(__file__).parent / "reproduction.md"
START, END = "<!-- plans: python -m reproduction.pages.gpu_plans -->", "<!-- end of plans -->"
SWEEPS = [
    *("lr_width_depth_mlp", "trained_ends", "lr_width_depth_conv", "vit", "norm", "trade_off", "how_long", "imagenet"),
    *("other_hparams_momentum", "other_hparams_gamma0", "other_hparams_weight_decay", "ode_sde", "pre_nonlin", "abs"),
    *(
        "block_depth",
        "block_depth_heatmap",
        "block_multiplier",
        "layernorm",
        "megatron",
        "megatron_multiplier",
        "which_preset",
    ),
]
SCALES = {
    "trained_ends": ("gpu10", "gpu", "paper"),
    "lr_width_depth_conv": ("gpu10", "gpu", "paper"),
    "which_preset": ("gpu10",),
}
HEADER = (
    "| sweep | scale | runs | steps | largest network | memory, GiB | hours, at least |\n|---|---|---|---|---|---|---|"
)


def row(name: str, scale: str) -> str:
    """The row of one sweep at one scale."""
    places = (PAGE.parents[1], PAGE.parents[2])
    config = from_file(next(path for place in places if (path := place / f"configs/sweeps/{name}.py").exists()), scale)
    if config.base.data.name.startswith("text:"):
        config.base.data.name = "text:tinyshakespeare.txt"
    devices, load = [absent_gpus.device("h100")], PlannedData()
    runs = expand(config)
    step = compile_sweep(config, devices, load, None, absent_gpus.MEMORY["h100"])
    found = make_plan(step)
    a_step = sum(kind.seconds for kind in step_kernels(step.compiled, H100))
    groups = plan(config, runs, load)
    costs = [group.experiment.cost * len(group.runs) for group in groups]
    assert step.lanes is not None
    most = max(groups, key=lambda group: group.experiment.cost)
    seconds = a_step * found.steps * sum(costs) / (most.experiment.cost * len(most.runs))
    model = most.experiment.config.model
    size = f"{model.width} x {model.depth}"
    numbers = f"{found.memory.total / 2**30:.2g}", f"{seconds / 3600:.2g}"
    cells = (name, scale, f"{len(runs):,}", f"{most.experiment.total_steps:,}", size, *numbers)
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the rows; replaces the table in the page if all sweeps were planned."""
    jax.config.update("jax_platforms", "cpu")
    names = sys.argv[1:] or SWEEPS
    lines = []
    for name in names:
        for scale in SCALES.get(name, ("gpu", "paper")):
            lines.append(row(name, scale))
            print(lines[-1], flush=True)
            jax.clear_caches()
    if sys.argv[1:]:
        return
    table = "\n".join([HEADER, *lines])
    PAGE.write_text(with_part(PAGE.read_text(), START, END, table))


if __name__ == "__main__":
    main()
