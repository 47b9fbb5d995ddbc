"""Compare a rule of yours with known ones, on ten small tasks.

    python -m reproduction.rules FILE.py [--tasks=digits_mlp_adam,pairs_gpt_adam] [--json]

FILE.py has RULE = dm.Parametrization(...), or a function RULE(width_ratio, depth_ratio, config) that returns one, and
may have TUNED = ("learning_rate", "input_lr_factor"). Its learning rate is tuned on each task's proxy and transferred
to networks of 4, 16 and 64 times the cost. The records of the rules in reproduction/rules/rules are committed, so that
only your rule's runs are trained: some minutes on two cores. Rerunning resumes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

from depthmup_flax.commands import console
from depthmup_flax.commands.parser import lanes, one_device_per_core
from depthmup_flax.devices.host import cache_compilations
from depthmup_flax.util.errors import BAD_INPUT, InputError, UserCodeError


def main(words: list[str]) -> int:
    """Trains what is missing and prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m reproduction.rules", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rule", help="A Python file, or the name of a committed rule, such as completep.")
    parser.add_argument("--tasks", help="Names of tasks with commas; default: all ten.")
    parser.add_argument("--workdir", help="Directory; default runs/rules/ and the file's name.")
    parser.add_argument(
        "--lanes", type=lanes, help="Runs at a time on a device: auto, which is the default, all or a number."
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    args = parser.parse_args(words)
    console.show()
    one_device_per_core()
    # Late imports: --help and a wrong flag answer at once.
    from reproduction.rules import table
    from reproduction.rules.rule_file import read_rule, shipped_rules
    from reproduction.rules.runs import benchmark
    from reproduction.rules.tasks import TASKS

    names = list(TASKS if args.tasks is None else dict.fromkeys(args.tasks.split(",")))
    if unknown := [name for name in names if name not in TASKS]:
        parser.error(f"--tasks has {unknown[0]!r}: use {', '.join(TASKS)}")
    workdir = args.workdir or f"runs/rules/{pathlib.Path(args.rule).stem}"
    cache_compilations()
    try:
        rule = read_rule(args.rule)
        others = [read_rule(name) for name in shipped_rules() if name != rule.name]
        rows = table.compared(benchmark(rule, others, names, workdir, args.lanes))
    except (InputError, UserCodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    print(json.dumps({"tasks": names, "rules": rows}) if args.json else table.text(rows, rule.name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
