"""The form of a stack of blocks that ``scan="auto"`` and ``remat="auto"`` choose."""

import pytest

from depthmup_flax.nn import blocks


@pytest.mark.parametrize(
    ("platform", "length", "at_a_time"),
    [("gpu", 12, 12), ("gpu", 64, 64), ("gpu", 65, blocks.GROUP), ("tpu", 12, 1), ("cpu", 12, 1), (None, 12, 1)],
)
def test_auto_unrolls_blocks_on_gpus_alone(platform, length, at_a_time, monkeypatch):
    monkeypatch.setattr(blocks, "target_platform", lambda: platform)
    assert blocks.layers_at_a_time("auto", length) == at_a_time
    assert blocks.layers_at_a_time(True, length) == 1
    assert blocks.layers_at_a_time(False, length) == length
