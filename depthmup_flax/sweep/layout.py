"""Which lane of a program trains which run.

Runs of one seed see the same examples. Lanes are therefore laid out in pieces of one seed each: a piece's examples are
prepared once and its first layer is one product of them with the kernels of all its lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from depthmup_flax.sweep.grid import Run


def lay_out(runs: Sequence[Run], capacity: int, together: int) -> tuple[list[Run], list[int]]:
    """The run of every lane, and the lanes that are not repetitions of others, to fill their piece.

    Args:
      runs: at most ``capacity``, for which `fits` holds.
      capacity: number of lanes.
      together: lanes of a piece; divides ``capacity``. With 1 runs are laid out in their order.
    """
    assert fits(runs, capacity, together)
    pieces = _pieces(runs, together)
    pieces += [[runs[0]]] * (capacity // together - len(pieces))
    lanes = [run for piece in pieces for run in [*piece, *[piece[-1]] * (together - len(piece))]]
    first = {run.hash: lane for lane, run in reversed(list(enumerate(lanes)))}
    return lanes, sorted(first.values())


def arranged(runs: Sequence[Run], per_device: int) -> list[Run]:
    """In the order in which they fill program after program.

    Each device gets runs of one seed, neighbours in the given order, where every seed's runs fill devices; otherwise
    the order stays.
    """
    pieces = _pieces(runs, per_device)
    if per_device == 1 or any(len(piece) < per_device for piece in pieces):
        return list(runs)
    rank = {run.hash: i for i, run in enumerate(runs)}
    return [run for piece in sorted(pieces, key=lambda piece: rank[piece[0].hash]) for run in piece]


def fits(runs: Sequence[Run], capacity: int, together: int) -> bool:
    """Whether ``runs`` have their own lanes in pieces of ``together``."""
    return len(_pieces(runs, together)) <= capacity // together


def largest_pieces(chunks: Sequence[Sequence[Run]], per_device: int, devices: int, most: int | None = None) -> int:
    """The most lanes of a piece with which every chunk fits: a divisor of ``per_device``, and of ``most``."""
    common = math.gcd(per_device, most or per_device)
    sizes = (size for size in range(common, 0, -1) if common % size == 0)
    return next(size for size in sizes if all(fits(runs, per_device * devices, size) for runs in chunks))


def _pieces(runs: Sequence[Run], together: int) -> list[list[Run]]:
    if together == 1:
        return [[run] for run in runs]
    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.config.seed, []).append(run)
    return [one[i : i + together] for one in by_seed.values() for i in range(0, len(one), together)]
