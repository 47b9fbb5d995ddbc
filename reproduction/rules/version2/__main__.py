"""Train what the records lack, cell by cell, and print the table.

    python -m reproduction.rules.version2 [--tasks=NAME,NAME] [--hours=1] [--workdir=runs/rules2]

Rerunning continues, in the middle of a cell if need be; a finished cell is copied to the committed records.
``--hours=0`` prints the table.
"""

from __future__ import annotations

from reproduction.rules.command import asked
from reproduction.rules.version2 import runs, table
from reproduction.rules.version2.tasks import TASKS


def main() -> None:
    """Trains, then prints."""
    own = asked("reproduction.rules.version2", __doc__, "--tasks", TASKS, "runs/rules2")
    runs.run({name: TASKS[name] for name in own.names}, own.workdir, own.hours)
    print(table.text(table.cells(runs.RECORDS)))


if __name__ == "__main__":
    main()
