"""Trains what the records lack, and prints the table.

    TFDS_DATA_DIR=... python -m reproduction.factors.runs [--hours=1] [--cells=plain-decay,...]

Rerunning continues; ``--hours=0`` prints the table.
"""

from __future__ import annotations

import logging
import pathlib
import time

from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep.runner import sweep
from reproduction.factors import table
from reproduction.factors.cells import CELLS
from reproduction.rules.command import asked
from reproduction.rules.runs import begun, ship

log = logging.getLogger(__name__)

RECORDS = pathlib.Path(__file__).with_name("records")


def main() -> None:
    """Trains, cell by cell, then prints."""
    known = {cell.name: cell for cell in CELLS}
    own = asked("reproduction.factors.runs", __doc__, "--cells", known, "runs/factors")
    load, start = LoadOnce(), time.process_time()
    for name in own.names if own.hours > 0 else ():
        cell = known[name]
        for part in ("base", "sizes"):
            if time.process_time() - start > 3600 * own.hours:
                log.warning("%g processor hours are used; the same command continues", own.hours)
                break
            shipped = RECORDS / name / part
            config = cell.tuning() if part == "base" else cell.carrying(cell.best(RECORDS / name / "base"))
            directory = begun(own.workdir / name / part, shipped)
            sweep(config, directory, load=load)
            ship(directory, shipped)
            log.warning("%s, %s: %.0f processor seconds so far", name, part, time.process_time() - start)
    print(table.text(RECORDS))


if __name__ == "__main__":
    main()
