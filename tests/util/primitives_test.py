"""The table of primitives."""

import itertools

from depthmup_flax.util import primitives

READERS = (
    "SAME_PLACE", "RAISED", "NONLINEAR", "PARALLEL", "KEEPS_NUMBER", "ENTRYWISE", "LINEAR", "KEEPS_STREAM", "CARRIES",
    "LOOKUPS", "UNDERSTOOD", "OF_ONE_ENTRY", "KEEPS_ORDER",
)  # fmt: skip


def test_every_primitive_is_in_one_row():
    rows = {name: set(row) for name, row in vars(primitives).items() if name.isupper() and name not in READERS}
    assert {
        (one, other): both for one, other in itertools.combinations(rows, 2) if (both := rows[one] & rows[other])
    } == {}
    assert primitives.is_understood("dot_general")
    assert not primitives.is_understood("pallas_call")
