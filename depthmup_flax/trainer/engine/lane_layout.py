"""Assigns runs to lanes.

Runs of one seed read the same examples. If possible, all lanes of a device have one seed: then the device prepares its
examples once, and computes the first layers of all lanes in one product.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from depthmup_flax.storage.records.table import SEED


@dataclasses.dataclass(frozen=True)
class LaneRun:
    """A run that shares a program with others of its workload."""

    hash: str  # its name
    hyperparameters: Mapping[str, float]  # those of the workload, the seed included

    @property
    def seed(self) -> int:
        """Of initialization, data order and augmentation."""
        return int(self.hyperparameters[SEED])


R = TypeVar("R", bound=LaneRun)


def cohorts(runs: Sequence[R], per_device: int, devices: int) -> list[list[R]]:
    """``runs`` in groups that train together, each of as many runs as there are lanes.

    If the runs of every seed fill whole devices, each device gets runs of one seed that are neighbors in the given
    order. Otherwise the order is unchanged.
    """
    order, pieces, capacity = list(runs), _pieces(runs, per_device), per_device * devices
    if all(len(piece) == per_device for piece in pieces):
        rank = {run.hash: i for i, run in enumerate(runs)}
        order = [run for piece in sorted(pieces, key=lambda piece: rank[piece[0].hash]) for run in piece]
    return [order[i : i + capacity] for i in range(0, len(order), capacity)]


def one_seed_fits(runs: Sequence[LaneRun], per_device: int, devices: int) -> bool:
    """Whether all ``runs`` get a lane if the lanes of a device have one seed."""
    return len(_pieces(runs, per_device)) <= devices


def lay_out(runs: Sequence[R], per_device: int, devices: int, one_seed: bool) -> tuple[list[R], dict[str, int]]:
    """The run of every lane, device after device, and hash of a run -> lane. Lanes that are left repeat a run.

    With ``one_seed``, for which `one_seed_fits`, the lanes of a device have one seed; otherwise runs keep their order.
    """
    size = per_device if one_seed else 1
    pieces = _pieces(runs, per_device) if one_seed else [[run] for run in runs]
    assert len(pieces) * size <= per_device * devices
    pieces += [[runs[0]]] * (per_device * devices // size - len(pieces))
    lanes = [run for piece in pieces for run in [*piece, *[piece[-1]] * (size - len(piece))]]
    hashes = [run.hash for run in lanes]
    return lanes, {name: hashes.index(name) for name in hashes}


def _pieces(runs: Sequence[R], size: int) -> list[list[R]]:
    """Runs of one seed, ``size`` at a time."""
    by_seed: dict[int, list[R]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, []).append(run)
    return [one[i : i + size] for one in by_seed.values() for i in range(0, len(one), size)]
