"""Trains what the records lack, a cell after the other, and prints the table.

    TEXT=tinyshakespeare.txt TFDS_DATA_DIR=... python -m reproduction.drift.runs [--hours=1] [--cells=mlp-adam-zero,...]

Rerunning continues, in the middle of a cell if need be; a finished cell is copied to the committed records.
``--hours=0`` prints the table. TEXT is the file of Tiny Shakespeare; CIFAR-10 is TFDS's.
"""

from __future__ import annotations

import json
import logging
import pathlib
import time
from collections.abc import Sequence

from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep.grid import expand
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.search.tune.start import excess_at_start
from depthmup_flax.storage.sweep_records import read_sweep
from depthmup_flax.trainer.engine.from_config import build
from reproduction.drift import table
from reproduction.drift.cells import CELLS, TEN_CELLS, Cell
from reproduction.rules.command import asked, within
from reproduction.rules.runs import begun, ship

log = logging.getLogger(__name__)

RECORDS = pathlib.Path(__file__).with_name("records")


def train(cells: Sequence[Cell], workdir: pathlib.Path, hours: float) -> None:
    """Trains the cells that the records lack, until ``hours`` of processor time are used."""
    load, start = LoadOnce(), time.process_time()
    for cell in within(hours, [cell for cell in cells if not is_done(cell)]):
        directory = begun(workdir / cell.name, RECORDS / cell.name)
        sweep(cell.sweep(), directory, load=load)
        ship(directory, RECORDS / cell.name)
        log.warning("%s: done, %.0f processor seconds so far", cell.name, time.process_time() - start)
    for cell in cells:
        if is_done(cell) and not (RECORDS / cell.name / table.START).exists():
            measure_start(cell, load)


def is_done(cell: Cell) -> bool:
    """Whether the committed records have all runs of a cell; seeds may be added to `cells`."""
    directory = RECORDS / cell.name
    if not (directory / "sweep.json").exists():
        return False
    known = {record.run for record in read_sweep([directory]).records}
    return all(run.hash in known for run in expand(cell.sweep()))


def measure_start(cell: Cell, load: LoadOnce) -> None:
    """Writes how far the base's loss before the first step is above that of equal logits, as `tune` measures it."""
    experiment = build(cell.base(), load=load)
    excess = excess_at_start(experiment, range(cell.seeds))
    assert excess is not None
    (RECORDS / cell.name / table.START).write_text(json.dumps({"excess": round(excess, 4)}) + "\n")


def main() -> None:
    """Trains, then prints."""
    known = {cell.name: cell for cell in (*CELLS, *TEN_CELLS)}
    ten = {"ten": [cell.name for cell in TEN_CELLS]}
    own = asked("reproduction.drift.runs", __doc__, "--cells", known, "runs/drift", ten)
    train([known[name] for name in own.names], own.workdir, own.hours)
    print(table.text(RECORDS))


if __name__ == "__main__":
    main()
