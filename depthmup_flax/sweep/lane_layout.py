"""Which lane of a program trains which run.

Runs of one seed see the same examples. Where a device's lanes can all have one seed they do: its examples are prepared
once, and the first layers of all its lanes are one product with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from depthmup_flax.sweep.grid import Run


def arranged(runs: Sequence[Run], per_device: int) -> list[Run]:
    """In the order in which they fill program after program.

    Each device gets runs of one seed, neighbors in the given order, where every seed's runs fill devices; otherwise
    the order stays.
    """
    pieces = _pieces(runs, per_device)
    if any(len(piece) < per_device for piece in pieces):
        return list(runs)
    rank = {run.hash: i for i, run in enumerate(runs)}
    return [run for piece in sorted(pieces, key=lambda piece: rank[piece[0].hash]) for run in piece]


def chunks(runs: Sequence[Run], per_device: int, devices: int) -> list[list[Run]]:
    """`arranged` runs, as many at a time as there are lanes."""
    order, capacity = arranged(runs, per_device), per_device * devices
    return [order[i : i + capacity] for i in range(0, len(order), capacity)]


def one_seed_fits(runs: Sequence[Run], per_device: int, devices: int) -> bool:
    """Whether ``runs`` have their own lanes if all lanes of a device are to have one seed."""
    return len(_pieces(runs, per_device)) <= devices


def lay_out(runs: Sequence[Run], per_device: int, devices: int, one_seed: bool) -> tuple[list[Run], list[int]]:
    """The run of every lane, device after device, and the lanes that do not repeat others to fill their device.

    Args:
      runs: at most as many as lanes; with ``one_seed`` such that `one_seed_fits`.
      per_device: lanes of a device.
      devices: number of devices.
      one_seed: all lanes of a device have the seed of one. Otherwise runs are laid out in their order.
    """
    size = per_device if one_seed else 1
    pieces = _pieces(runs, per_device) if one_seed else [[run] for run in runs]
    assert len(pieces) * size <= per_device * devices
    pieces += [[runs[0]]] * (per_device * devices // size - len(pieces))
    lanes = [run for piece in pieces for run in [*piece, *[piece[-1]] * (size - len(piece))]]
    first = {run.hash: lane for lane, run in reversed(list(enumerate(lanes)))}
    return lanes, sorted(first.values())


def _pieces(runs: Sequence[Run], size: int) -> list[list[Run]]:
    """Runs of one seed, ``size`` at a time."""
    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.config.seed, []).append(run)
    return [one[i : i + size] for one in by_seed.values() for i in range(0, len(one), size)]
