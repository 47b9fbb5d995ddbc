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

from depthmup_flax.commands.parser import Parser, lanes, one_device_per_core, shard, workdir_of
from depthmup_flax.devices.host import cache_compilations
from depthmup_flax.util import messages


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("A shipped config, such as sweeps/digits, or a Python file.")
    parser.flag("--workdir", help="Directory; default runs/sweeps/ and the config's name.")
    parser.flag("--overwrite", action="store_true", help="Delete the sweep in --workdir and start again.")
    parser.flag("--dry_run", action="store_true", help="Print the runs and their sizes; train nothing.")
    parser.flag("--shard", type=shard, default=(0, 1), help="i/n: run only part i of n, from 0; for several machines.")
    parser.flag("--lanes", type=lanes, help="Runs at a time on a device: auto, which is the default, all or a number.")


def main(args: argparse.Namespace) -> None:
    """Runs the sweep, or prints what it would run."""
    one_device_per_core()
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.search.sweep.groups import dry_run
    from depthmup_flax.search.sweep.runner import sweep

    config = args.config.resolved()
    if args.dry_run:
        print(dry_run(config, args.shard))
        return
    workdir = workdir_of(args, "runs/sweeps")
    cache_compilations()
    sweep(config, workdir, shard=args.shard, lanes=args.lanes, overwrite=args.overwrite)
    print(f"Records are in {workdir}")
    messages.next_step(f"depthmup report {shlex.quote(str(workdir))}")
