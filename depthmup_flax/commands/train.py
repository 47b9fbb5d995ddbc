"""Train one network with Depth-muP.

    depthmup train --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup train --config=digits
    depthmup train --config=digits --config.model.depth=32 --workdir=runs/deep
    depthmup train --config=cifar10_resnet --print_params

Rerunning the command resumes the run. In a clone, python train.py is the same.
depthmup config lists the configs, depthmup config digits all fields of one.

Exit codes: 0 the run has ended, 2 bad input, 74 the disk or the data failed,
75 preempted after saving, or another process uses the work directory: rerun the
command to resume.
"""

from __future__ import annotations

import argparse

from depthmup_flax.commands.parser import Parser, workdir_of
from depthmup_flax.devices.host import cache_compilations
from depthmup_flax.storage.sweep_records import COMPLETED
from depthmup_flax.util import errors, messages


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("A shipped config, such as digits, or a Python file.", default="digits")
    parser.flag("--workdir", help="Directory; default runs/ and the config's name.")
    parser.flag("--overwrite", action="store_true", help="Delete the run in --workdir and start again.")
    parser.flag("--print_params", action="store_true", help="Print the factors of all parameters and exit.")


def main(args: argparse.Namespace) -> int:
    """Trains the config; returns the exit code."""
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.devices import distributed
    from depthmup_flax.trainer.engine.from_config import build
    from depthmup_flax.trainer.loop import PREEMPTED, train_and_evaluate

    if args.print_params:
        print(build(args.config.resolved()).parameter_table())
        return 0
    cache_compilations()
    # First, so that a failure of one process ends the others.
    distributed.start()
    config = args.config.resolved()
    workdir = workdir_of(args, "runs")
    result = train_and_evaluate(config, workdir, overwrite=args.overwrite)
    if result["status"] == COMPLETED and config.train.checkpoint and distributed.is_first():
        messages.next_step(f"in Python, dm.load_run({workdir!r})")
    return errors.PREEMPTED if result["status"] == PREEMPTED else 0
