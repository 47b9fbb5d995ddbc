"""Train what the records lack, cell by cell, and print the table.

    python -m reproduction.rules.version2 [--tasks=NAME,NAME] [--hours=1] [--workdir=runs/rules2]

Rerunning continues, in the middle of a cell if need be; a finished cell is copied to the committed records.
``--hours=0`` prints the table.
"""

from __future__ import annotations

import argparse
import pathlib

from depthmup_flax.commands import console
from reproduction.rules.version2 import runs, table
from reproduction.rules.version2.tasks import TASKS


def main() -> None:
    """Trains, then prints."""
    parser = argparse.ArgumentParser(
        "python -m reproduction.rules.version2",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tasks", help="Names with commas; default: all.")
    parser.add_argument("--hours", type=float, default=1.0, help="Processor hours after which no further cell starts.")
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/rules2"))
    args = parser.parse_args()
    names = list(TASKS) if args.tasks is None else args.tasks.split(",")
    if unknown := [name for name in names if name not in TASKS]:
        parser.error(f"--tasks has {unknown[0]!r}: use {', '.join(TASKS)}")
    console.show()
    runs.run(names, args.workdir, args.hours)
    print(table.text(table.cells(runs.RECORDS)))


if __name__ == "__main__":
    main()
