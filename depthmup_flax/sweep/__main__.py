"""Trains a grid of runs: python -m depthmup_flax.sweep --config=configs/sweeps/digits.py --workdir=runs/sweep

Runs that differ only in learning rate, momentum, seed and other numbers share one compiled program; a short benchmark
chooses how many train together. Each run appends a record to DIR/records.jsonl when it ends, and rerunning the command
resumes the sweep. Make figures with: python -m depthmup_flax.report DIR
"""

from absl import flags

from depthmup_flax import cli
from depthmup_flax.compilation_cache import cache_compilations
from depthmup_flax.errors import InputError

_CONFIG = cli.define_config(
    "Python file with get_config(scale); --config.scale=smoke|cpu|gpu|paper. Set a field of the base config with "
    "--config.base.model.norm=layer, an axis of a grid with --config.grids.<name>.model.depth='(4, 8)'."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory for sweep.json and records.jsonl; resumed if it has them.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the sweep in --workdir and start again.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the grid, the number of runs and a time estimate; train nothing.")
_SHARD = flags.DEFINE_string("shard", "0/1", "i/n: train only the i-th of n parts of the grid, counted from 0.")
_LANES = flags.DEFINE_string("lanes", "auto", "Runs together on each device: auto (benchmark), all, or a number.")


def main(argv: list[str]) -> None:
    """Runs the sweep, or prints what it would run."""
    cli.require_no_arguments(argv)
    cli.one_device_per_core()
    # Imported here, so that --help and a wrong flag answer at once.
    from depthmup_flax.sweep.dry_run import describe
    from depthmup_flax.sweep.lane_count import parse_lanes
    from depthmup_flax.sweep.runner import sweep

    config, lanes, shard = cli.resolved(_CONFIG), parse_lanes(_LANES.value), _parse_shard(_SHARD.value)
    if _DRY_RUN.value:
        print(describe(config, lanes, shard))
        return
    workdir = _WORKDIR.value or cli.default_workdir("runs/sweeps")
    cache_compilations()
    sweep(config, workdir, shard=shard, lanes=lanes, overwrite=_OVERWRITE.value)
    print(f"records: {workdir}; make figures: python -m depthmup_flax.report {workdir}")


def _parse_shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if index.isdigit() and count.isdigit() and int(index) < int(count):
        return int(index), int(count)
    raise InputError(f"--shard is {text}: write i/n with i from 0 to n - 1, such as --shard=0/4.")


if __name__ == "__main__":
    cli.run(main)
