"""Trains what registration.md lists and the records lack, stage after stage.

    XLA_FLAGS=--xla_cpu_multi_thread_eigen=false TFDS_DATA_DIR=... python -m reproduction.papers.runs [--hours=1]

Rerunning continues, in the middle of a run if need be; the committed records are renewed after every run.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Collection, Mapping
from typing import Any

from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep.grid import expand
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import read_sweep
from depthmup_flax.util.errors import PREEMPTED, Preempted
from reproduction.papers.stages import STAGES, Stage
from reproduction.rules.command import asked, within
from reproduction.rules.runs import begun, ship

RECORDS = pathlib.Path(__file__).with_name("records")


def train(figures: Collection[str], workdir: pathlib.Path, hours: float) -> None:
    """Trains the stages of ``figures``, in their order; none starts once ``hours`` of processor time are used."""
    load = LoadOnce()
    for stage in within(hours, [stage for stage in STAGES if stage.figure in figures]):
        train_stage(stage, workdir, load)


def train_stage(stage: Stage, workdir: pathlib.Path, load: LoadOnce) -> None:
    """Trains the runs of a stage that its records lack."""
    place = RECORDS / stage.figure
    directory = begun(workdir / stage.figure, place)

    def publish(_: Mapping[str, Any]) -> None:
        ship(directory, place)

    # One run at a time: at this width a core trains several side by side no faster.
    sweep(stage.config(), directory, lanes=1, load=load, on_record=publish)


def text() -> str:
    """How many of the registered runs each figure has, extensions left out."""
    lines = []
    for figure in dict.fromkeys(stage.figure for stage in STAGES):
        runs = {run.hash for stage in STAGES if stage.figure == figure for run in expand(stage.config())}
        lines.append(f"{figure}: {len(runs & _done(figure))} of {len(runs)} runs")
    return "\n".join(lines)


def _done(figure: str) -> set[str]:
    directory = RECORDS / figure
    return {record.run for record in read_sweep([directory]).records} if directory.exists() else set()


def main() -> None:
    """Trains, then prints what is there."""
    own = asked(
        "reproduction.papers.runs",
        __doc__,
        "--figures",
        list(dict.fromkeys(stage.figure for stage in STAGES)),
        "runs/papers",
    )
    try:
        train(own.names, own.workdir, own.hours)
    except Preempted as stopped:
        print(f"{text()}\n{stopped}")
        sys.exit(PREEMPTED)
    print(text())


if __name__ == "__main__":
    main()
