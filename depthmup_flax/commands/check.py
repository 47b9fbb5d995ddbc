"""Check that a config's network follows the rule: the coordinate check.

    depthmup check --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup check --config=digits
    depthmup check --config=digits --config.parametrization.preset=mup
    depthmup check --config=cifar10_resnet --widths=32,64,128 --workdir=runs/check

Reads the code of the network, then trains it at several widths and depths for
two steps on one batch, with the config's optimizer and learning rate: initial
values, gradients and updates must have the sizes that the rule gives them.
Without --widths and --depths it chooses two of each by their cost; with one of
them it checks that axis alone. Compiled programs are cached.
depthmup config digits explains the fields of the config.
Exit codes: 0 the check passes, 1 it fails and says why, 2 bad input.
"""

import argparse

from depthmup_flax.commands.parser import Parser, numbers
from depthmup_flax.devices.host import cache_compilations
from depthmup_flax.util.errors import InputError


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("A shipped config, such as digits, or a Python file.")
    parser.flag("--workdir", help="Directory for records, report and figure; default: none.")
    parser.flag("--widths", type=numbers, default=(), help="Widths A,B; default: by cost, or none with --depths.")
    parser.flag("--depths", type=numbers, default=(), help="Depths A,B; default: by cost, or none with --widths.")
    parser.flag("--width", type=int, default=0, help="Width while the depth varies; 0: the base.")
    parser.flag("--depth", type=int, default=0, help="Depth while the width varies; 0: the base.")
    parser.flag("--steps", type=int, default=2, help="Training steps.")
    parser.flag("--seeds", type=int, default=4, help="Initial values per size.")
    parser.flag("--batch_size", type=int, default=4, help="Training examples in the batch.")
    parser.flag("--tolerance", type=float, default=0.2, help="Exponents up to this count as constant size.")
    parser.flag("--details", action="store_true", help="Print every quantity.")


def main(args: argparse.Namespace) -> int:
    """Prints the report; returns the exit code."""
    from depthmup_flax.search.coordinate_check import check_config  # late: --help does not need JAX

    cache_compilations()
    config, plan = args.config.resolved(), ("widths", "depths", "width", "depth", "steps", "seeds", "batch_size")
    for name in ("width", "depth"):
        if f"model.{name}" in args.config.fields and config.model[f"base_{name}"]:
            raise InputError(f"model.{name} is not used here: set --{name}s=A,B, --{name}=N or model.base_{name}.")
    options = {name: getattr(args, name) for name in (*plan, "tolerance", "workdir")}
    report = check_config(config, **options)
    print(report.details() if args.details else report)
    if args.workdir:
        print(f"\nThe records, report and figure are in {args.workdir}.")
    return 0 if report.ok else 1
