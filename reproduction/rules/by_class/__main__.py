"""Train what the records lack, task by task, and print the table and the decisions.

    python -m reproduction.rules.by_class [--tasks=NAME,NAME] [--hours=1] [--workdir=runs/by_class]

Rerunning continues; records are copied to the committed ones as they are made. ``--hours=0`` prints the table.
"""

from __future__ import annotations

import argparse
import pathlib

from depthmup_flax.commands import console
from reproduction.rules.by_class import runs, table
from reproduction.rules.by_class.tasks import TASKS


def main() -> None:
    """Trains, then prints."""
    parser = argparse.ArgumentParser(
        "python -m reproduction.rules.by_class",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tasks", help="Names with commas; default: all.")
    parser.add_argument("--hours", type=float, default=1.0, help="Processor hours after which no further way starts.")
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/by_class"))
    args = parser.parse_args()
    names = list(TASKS) if args.tasks is None else args.tasks.split(",")
    if unknown := [name for name in names if name not in TASKS]:
        parser.error(f"--tasks has {unknown[0]!r}: use {', '.join(TASKS)}")
    console.show()
    if args.hours > 0:
        runs.run(names, args.workdir, args.hours)
    print(table.text(table.results()))


if __name__ == "__main__":
    main()
