"""The sizes that a check chooses."""

import pytest

from depthmup_flax.check.check import chosen_sizes


@pytest.mark.parametrize(
    ("flops", "equations", "widths", "depths"),
    [
        (1e6, 50, (128, 256, 512), (8, 16, 32)),  # small: far from the base
        (1e6, 150, (128, 256, 512), (4, 8, 16)),  # layers that are not in a loop compile one by one
        (3e8, 100, (32, 64, 128), (2, 4, 8)),  # a transformer of 4 layers of width 64 on 512 tokens
        (1e12, 1e4, (32, 64, 128), (2, 4, 8)),  # nothing is cheap enough: the smallest
    ],
)
def test_sizes_grow_until_they_cost_too_much(flops, equations, widths, depths):
    assert chosen_sizes(32, 2, flops, equations) == (widths, depths)
