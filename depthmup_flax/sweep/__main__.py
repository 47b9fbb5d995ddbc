"""Trains a grid of runs: python -m depthmup_flax.sweep --config=configs/sweeps/digits.py --workdir=runs/sweep

Runs that differ in learning rate, momentum, seed and other numbers share one compiled program, vectorized where a
measurement says that it pays. Records are appended to DIR/records.jsonl as runs end; the same command again continues.
Make figures of them with: python -m depthmup_flax.report DIR
"""

from absl import flags

from depthmup_flax import cli
from depthmup_flax.errors import InputError

_CONFIG = cli.define_config(
    "Python file with get_config(scale); --config.scale=smoke|cpu|gpu|paper, any field of the base config is "
    "--config.base.model.norm=layer, a grid's axis --config.grids.<name>.model.depth='(4, 8)'."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory for sweep.json and records.jsonl; continued if it has them.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the sweep that --workdir holds, and start anew.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the grid, the number of runs and a time estimate; train nothing.")
_SHARD = flags.DEFINE_string("shard", "0/1", "i/n: only the i-th of n parts of the grid, counted from 0.")
_LANES = flags.DEFINE_string("lanes", "auto", "Runs at a time on each device: auto (measure), all, 1, or a number.")


def main(argv: list[str]) -> None:
    """Runs what the flags say; bad input ends with one sentence. Exit codes are in `depthmup_flax.errors`."""
    cli.require_no_arguments(argv)
    cli.one_device_per_core()
    # Imported here, so that --help and a wrong flag answer at once.
    from depthmup_flax.sweep.lane_count import parse_lanes
    from depthmup_flax.sweep.runner import describe, sweep

    config, lanes, shard = cli.resolved(_CONFIG), parse_lanes(_LANES.value), _parse_shard(_SHARD.value)
    if _DRY_RUN.value:
        print(describe(config, lanes, shard))
        return
    if not _WORKDIR.value:
        raise InputError("--workdir is not set: name a directory for the records, such as --workdir=runs/sweep.")
    sweep(config, _WORKDIR.value, shard=shard, lanes=lanes, overwrite=_OVERWRITE.value)
    print(f"records in {_WORKDIR.value}; figures: python -m depthmup_flax.report {_WORKDIR.value}")


def _parse_shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if index.isdigit() and count.isdigit() and int(index) < int(count):
        return int(index), int(count)
    raise InputError(f"--shard={text}: write i/n with i from 0 to n - 1, such as --shard=0/4.")


if __name__ == "__main__":
    cli.run(main)
