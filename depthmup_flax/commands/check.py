"""Check that a config's network follows the rule: the coordinate check.

    depthmup check --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup check --config=digits
    depthmup check --config=digits --config.parametrization.preset=mup
    depthmup check --config=cifar10_resnet --widths=32,64,128 --workdir=runs/check

Reads the code of the network, then trains it at several widths and depths for
a few steps on one batch, with the config's optimizer and learning rate:
activations and updates must keep their size. Without --widths and --depths it
chooses sizes that cost less than a minute on 2 CPU cores; with one of them it
checks that axis alone. Compiled programs are cached.
depthmup config digits explains the fields of the config.
Exit codes: 0 the check passes, 1 it fails and says why, 2 bad input.
"""

import argparse
import contextlib

from depthmup_flax.commands.parser import Parser, comma_separated, whole_numbers
from depthmup_flax.devices.host import cache_compilations
from depthmup_flax.storage.workdir import COORD_CHECK, claimed
from depthmup_flax.util.errors import InputError


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("A shipped config, such as digits, or a Python file.")
    parser.flag("--workdir", help="Directory for records, report and figure; default: none.")
    parser.flag("--widths", type=comma_separated, help="Widths A,B,C; default: by cost, or none with --depths.")
    parser.flag("--depths", type=comma_separated, help="Depths A,B,C; default: by cost, or none with --widths.")
    parser.flag("--width", type=int, default=0, help="Width while the depth varies; 0: the base.")
    parser.flag("--depth", type=int, default=0, help="Depth while the width varies; 0: the base.")
    parser.flag("--steps", type=int, default=4, help="Training steps.")
    parser.flag("--seeds", type=int, default=4, help="Initial values per size.")
    parser.flag("--batch_size", type=int, default=4, help="Training examples in the batch.")
    parser.flag("--tolerance", type=float, default=0.2, help="Exponents up to this count as constant size.")
    parser.flag("--details", action="store_true", help="Print every quantity.")
    parser.flag("--spectral", action="store_true", help="Also record the spectral norm of every update.")


def main(args: argparse.Namespace) -> int:
    """Prints the report; returns the exit code."""
    from depthmup_flax.search.study.prepared_check import prepared_check  # late: --help does not need JAX

    cache_compilations()
    config = args.config.resolved()
    overrides = args.config.overrides()
    for name in ("width", "depth"):
        if f"model.{name}" in overrides and config.model[f"base_{name}"]:
            raise InputError(
                f"--config.model.{name}={overrides[f'model.{name}']} is not used by the check: set the {name}s to "
                f"compare with --{name}s=A,B,C, the {name} of all other networks with --{name}=N, or the base with "
                f"--config.model.base_{name}."
            )
    # Before the claim: a wrong flag creates no directory.
    check = prepared_check(
        config,
        widths=whole_numbers("widths", args.widths) or (),
        depths=whole_numbers("depths", args.depths) or (),
        width=args.width,
        depth=args.depth,
        steps=args.steps,
        seeds=args.seeds,
        batch_size=args.batch_size,
        tolerance=args.tolerance,
        spectral=args.spectral,
    )
    with claimed(args.workdir, COORD_CHECK) if args.workdir else contextlib.nullcontext() as claim:
        report = check()
        print(report.details() if args.details else report)
        if claim is not None:
            claim.check()
            report.write_to(claim.directory)
            print(f"\nThe records, report and figure are in {claim.directory}.")
    return 0 if report.ok else 1
