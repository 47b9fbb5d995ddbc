"""Train a grid of networks over learning rate, width, depth, seed, ...

    depthmup sweep --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup sweep --config=sweeps/digits
    depthmup sweep --config=sweeps/vit --config.scale=smoke --dry_run
    depthmup sweep --config=sweeps/digits --config.base.model.norm=layer

--config.scale is smoke, cpu, long, gpu or paper. --config.base.model.norm sets a field
of all runs, --config.grids.NAME.model.depth="(4, 8)" the values of an axis:
depthmup config sweeps/digits lists both.

Runs that differ only in learning rate, seed and other numbers share a compiled
program and train together. Each run appends a line to records.jsonl when it
ends. Rerunning the command resumes the sweep. Afterwards: depthmup report
"""

from absl import flags

from depthmup_flax import cli, console
from depthmup_flax.compilation_cache import cache_compilations
from depthmup_flax.errors import InputError

_CONFIG = cli.define_config("A shipped config, such as sweeps/digits, or a Python file.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory; default runs/sweeps/ and the config's name.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the sweep in --workdir and start again.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the runs and their sizes; train nothing.")
_MEASURE = flags.DEFINE_bool("measure", False, "As --dry_run, and measure memory and time.")
_SHARD = flags.DEFINE_string("shard", "0/1", "i/n: only part i of n, from 0; for several machines.")
_LANES = flags.DEFINE_string("lanes", "auto", "Runs at a time on a device: auto, all or a number.")


def main(argv: list[str]) -> None:
    """Runs the sweep, or prints what it would run."""
    cli.require_no_arguments(argv)
    cli.one_device_per_core()
    # Imported here, so that --help and a wrong flag answer at once.
    from depthmup_flax.sweep.dry_run import describe
    from depthmup_flax.sweep.lane_count import parse_lanes
    from depthmup_flax.sweep.runner import sweep

    config, lanes, shard = cli.resolved(_CONFIG), parse_lanes(_LANES.value), _parse_shard(_SHARD.value)
    if _DRY_RUN.value or _MEASURE.value:
        print(describe(config, lanes, shard, measure=_MEASURE.value))
        return
    workdir = _WORKDIR.value or cli.default_workdir("runs/sweeps")
    cache_compilations()
    sweep(config, workdir, shard=shard, lanes=lanes, overwrite=_OVERWRITE.value)
    print(f"Records are in {workdir}")
    console.next_step(f"depthmup report {workdir}")


def _parse_shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if index.isdigit() and count.isdigit() and int(index) < int(count):
        return int(index), int(count)
    raise InputError(f"--shard is {text}: write i/n with i from 0 to n - 1, such as --shard=0/4.")


if __name__ == "__main__":
    cli.run(main)
