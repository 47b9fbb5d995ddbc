"""Train a grid of networks over learning rate, width, depth, seed, ...

    depthmup sweep --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup sweep --config=sweeps/digits
    depthmup sweep --config=sweeps/vit --config.scale=smoke --dry_run
    depthmup sweep --config=sweeps/digits --config.base.model.norm=layer

--config.scale is smoke, cpu, long, gpu10, gpu or paper. --config.base.model.norm sets a field
of all runs, --config.grids.NAME.model.depth="(4, 8)" the values of an axis;
depthmup config sweeps/digits lists both.

Runs that differ only in learning rate, seed and other numbers share a compiled
program and train together. Each run appends a line to records.jsonl when it
ends. Rerunning the command resumes the sweep. Afterwards: depthmup report
"""

import argparse
import shlex

from depthmup_flax.commands import start
from depthmup_flax.commands.parser import Parser
from depthmup_flax.devices.host import cache_compilations
from depthmup_flax.util import messages
from depthmup_flax.util.errors import InputError


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("A shipped config, such as sweeps/digits, or a Python file.")
    parser.flag("--workdir", help="Directory; default runs/sweeps/ and the config's name.")
    parser.flag("--overwrite", action="store_true", help="Delete the sweep in --workdir and start again.")
    parser.flag("--dry_run", action="store_true", help="Print the runs and their sizes; train nothing.")
    parser.flag("--measure", action="store_true", help="Like --dry_run, and measure memory and time.")
    parser.flag("--shard", default="0/1", help="i/n: run only part i of n, from 0; for several machines.")
    parser.flag("--lanes", default="auto", help="Runs at a time on a device: auto, all or a number.")


def main(args: argparse.Namespace) -> None:
    """Runs the sweep, or prints what it would run."""
    start.one_device_per_core()
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.search.sweep.dry_run import describe
    from depthmup_flax.search.sweep.groups import parse_lanes
    from depthmup_flax.search.sweep.runner import sweep

    config, lanes, shard = args.config.resolved(), parse_lanes(args.lanes), _parse_shard(args.shard)
    if args.dry_run or args.measure:
        print(describe(config, lanes, shard, measure=args.measure))
        return
    workdir = start.workdir(args, "runs/sweeps")
    cache_compilations()
    sweep(config, workdir, shard=shard, lanes=lanes, overwrite=args.overwrite)
    print(f"Records are in {workdir}")
    messages.next_step(f"depthmup report {shlex.quote(str(workdir))}")


def _parse_shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if index.isdigit() and count.isdigit() and int(index) < int(count):
        return int(index), int(count)
    raise InputError(f"--shard is {text}: write i/n with i from 0 to n - 1, such as --shard=0/4.")
