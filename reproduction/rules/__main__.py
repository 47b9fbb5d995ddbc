"""Compare a rule of yours with known ones, on ten small tasks.

    depthmup benchmark-rule FILE.py [FLAG ...]

Examples:
    depthmup benchmark-rule my_rule.py
    depthmup benchmark-rule my_rule.py --tasks=digits_mlp_adam,pairs_gpt_adam
    depthmup benchmark-rule completep --json

FILE.py has RULE = dm.Parametrization(...), or a function RULE(width_ratio, depth_ratio,
config) that returns one, and may have TUNED = ("learning_rate", "input_lr_factor"). Its
learning rate is tuned on each task's proxy and transferred to networks of 4, 16 and 64
times the cost. The records of the shipped rules come with the package, so that only
your rule's runs are trained: some minutes on two cores. Rerunning resumes.
"""

from __future__ import annotations

import argparse
import json
import pathlib

from depthmup_flax.commands import start
from depthmup_flax.commands.parser import Parser, comma_separated
from depthmup_flax.devices.process.compilation_cache import cache_compilations
from depthmup_flax.util.errors import InputError, did_you_mean


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_words()
    parser.flag("--tasks", type=comma_separated, help="Names of tasks; default: all ten.")
    parser.flag("--workdir", help="Directory; default runs/rules/ and the file's name.")
    parser.flag("--lanes", default="auto", help="Runs at a time on a device: auto, all or a number.")
    parser.flag("--json", action="store_true", help="Print one JSON object.")


def main(args: argparse.Namespace) -> None:
    """Trains what is missing, prints the table."""
    if len(args.words) != 1:
        raise InputError("name one rule, such as depthmup benchmark-rule my_rule.py.")
    start.one_device_per_core()
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.search.sweep.groups import parse_lanes
    from reproduction.rules import table
    from reproduction.rules.rule_file import read_rule, shipped_rules
    from reproduction.rules.runs import benchmark
    from reproduction.rules.tasks import TASKS

    rule = read_rule(args.words[0])
    names = list(TASKS if args.tasks is None else dict.fromkeys(args.tasks))
    if not names:
        raise InputError(f"--tasks is empty: name some of {', '.join(TASKS)}.")
    for name in names:
        if name not in TASKS:
            raise InputError(f"--tasks has {name!r}: {did_you_mean(name, TASKS)}")
    workdir = args.workdir or f"runs/rules/{pathlib.Path(args.words[0]).stem}"
    cache_compilations()
    others = [read_rule(name) for name in shipped_rules() if name != rule.name]
    rows = table.compared(benchmark(rule, others, names, workdir, parse_lanes(args.lanes)))
    print(json.dumps({"tasks": names, "rules": rows}) if args.json else table.text(rows, rule.name))
