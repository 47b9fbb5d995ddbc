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
from reproduction.factors.cells import CELLS, SIZES
from reproduction.rules.command import asked, within
from reproduction.rules.runs import begun, ship

log = logging.getLogger(__name__)

RECORDS = pathlib.Path(__file__).with_name("records")


def main() -> None:
    """Trains, size by size, then prints."""
    known = {cell.name: cell for cell in CELLS}
    own = asked("reproduction.factors.runs", __doc__, "--cells", known, "runs/factors")
    load, start = LoadOnce(), time.process_time()
    parts = [(known[name], part) for part in ("base", *SIZES) for name in own.names]
    for cell, part in within(own.hours, parts if own.hours > 0 else ()):
        if part not in ("base", *cell.sizes):
            continue
        shipped = RECORDS / cell.name / part
        best = cell.best(RECORDS / cell.name / "base") if part != "base" else {}
        config = cell.carrying(best, SIZES[part]) if best else cell.tuning()
        directory = begun(own.workdir / cell.name / part, shipped)
        sweep(config, directory, load=load)
        ship(directory, shipped)
        log.warning("%s, %s: %.0f processor seconds so far", cell.name, part, time.process_time() - start)
    print(table.text(RECORDS))


if __name__ == "__main__":
    main()
