"""Train what the records lack, task by task, and print the table and the decisions.

    python -m reproduction.rules.by_class [--tasks=NAME,NAME] [--hours=1] [--workdir=runs/by_class]

Rerunning continues; records are copied to the committed ones as they are made. ``--hours=0`` prints the table.
"""

from __future__ import annotations

from reproduction.rules.by_class import runs, table
from reproduction.rules.by_class.tasks import TASKS
from reproduction.rules.command import asked


def main() -> None:
    """Trains, then prints."""
    own = asked("reproduction.rules.by_class", __doc__, "--tasks", TASKS, "runs/by_class")
    if own.hours > 0:
        runs.run(own.names, own.workdir, own.hours)
    print(table.text(table.results()))


if __name__ == "__main__":
    main()
