"""Which lane of a program trains which run.

Runs of one seed see the same examples. If possible all lanes of a device have one seed: its examples are then prepared
once, and the first layers of all its lanes are one product with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar


class LaneRun(Protocol):
    """A run that shares a program with others."""

    @property
    def hash(self) -> str:
        """Its name."""

    @property
    def seed(self) -> int:
        """Of initialization, data order and augmentation."""

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        """Those of its `depthmup_flax.engine.task.Task`; the seed is one of them."""


R = TypeVar("R", bound=LaneRun)


def cohorts(runs: Sequence[R], per_device: int, devices: int) -> list[list[R]]:
    """``runs`` in groups that train together, each with as many runs as there are lanes.

    Where every seed's runs fill devices, each device gets runs of one seed, neighbors in the given order; otherwise the
    order is unchanged.
    """
    order, pieces, capacity = list(runs), _pieces(runs, per_device), per_device * devices
    if all(len(piece) == per_device for piece in pieces):
        rank = {run.hash: i for i, run in enumerate(runs)}
        order = [run for piece in sorted(pieces, key=lambda piece: rank[piece[0].hash]) for run in piece]
    return [order[i : i + capacity] for i in range(0, len(order), capacity)]


def one_seed_fits(runs: Sequence[LaneRun], per_device: int, devices: int) -> bool:
    """Whether every one of ``runs`` gets a lane if all lanes of a device have one seed."""
    return len(_pieces(runs, per_device)) <= devices


def lay_out(runs: Sequence[R], per_device: int, devices: int, one_seed: bool) -> tuple[list[R], dict[str, int]]:
    """The run of every lane, device after device, and the lane of every run's hash; other lanes repeat a run.

    With ``one_seed``, where `one_seed_fits`, all lanes of a device have the same seed; otherwise runs keep their order.
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
