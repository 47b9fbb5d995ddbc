"""The rule benchmark's tasks of version 2 with a readout that starts at zero, for all rules alike.

    python -m reproduction.drift.benchmark [--hours=1] [--tasks=digits_mlp_adam,...]

Rerunning continues; ``--hours=0`` prints the table.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

import numpy as np

from depthmup_flax.util.table import Table
from reproduction.rules.command import asked
from reproduction.rules.version2 import runs, table
from reproduction.rules.version2.tasks import TARGETS, TASKS, Task

RECORDS = pathlib.Path(__file__).with_name("benchmark_records")
RULES = ("depth_mup", "completep", "mup", "sp")


def _at_zero(task: Task) -> Task:
    return dataclasses.replace(task, fields={**task.fields, "zero_init_readout": True})


AT_ZERO: Mapping[str, Task] = {name: _at_zero(task) for name, task in TASKS.items()}
DEEPER = "depth x4"  # the target of all fourteen tasks
HEADER = ("task: random, zero", *RULES, "lowest loss")


def rows() -> list[tuple[str, ...]]:
    """Of each task that is done from both starts: each rule's regret at four times the depth, and the lowest loss."""
    random, zero = table.cells(runs.RECORDS), table.cells(RECORDS, AT_ZERO)
    done = [name for name in AT_ZERO if (name, DEEPER, RULES[0]) in zero]
    listed = [_row(name, random, zero) for name in done]
    return [*listed, _means(done, random, zero)] if done else []


def _row(name: str, random: table.Cells, zero: table.Cells) -> tuple[str, ...]:
    starts = [[found[name, DEEPER, rule] for rule in RULES] for found in (random, zero)]
    regrets = [_pair(first.regret, second.regret) for first, second in zip(*starts, strict=True)]
    return (name, *regrets, _pair(starts[0][0].best, starts[1][0].best))


def _means(names: list[str], random: table.Cells, zero: table.Cells) -> tuple[str, ...]:
    of = lambda found, rule: float(np.mean([found[name, DEEPER, rule].regret for name in names]))
    return (f"mean of {len(names)}", *(_pair(of(random, rule), of(zero, rule)) for rule in RULES), "")


def _pair(random: float, zero: float) -> str:
    return f"{random:.3f}, {zero:.3f}"


def main() -> None:
    """Trains, then prints."""
    own = asked("reproduction.drift.benchmark", __doc__, "--tasks", AT_ZERO, "runs/drift_benchmark")
    tasks = {name: AT_ZERO[name] for name in own.names}
    runs.run(tasks, own.workdir, own.hours, RECORDS, {DEEPER: TARGETS[DEEPER]})
    print("\n".join(Table(HEADER, rows(), "<" + ">" * (len(HEADER) - 1)).lines))


if __name__ == "__main__":
    main()
