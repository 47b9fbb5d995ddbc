"""Parts of a sweep that start together in one directory, on a file system as slow as a file server."""

import pytest
import simultaneous_starts


@pytest.mark.slow
def test_of_parts_that_start_together_none_is_lost():
    assert not simultaneous_starts.run(200)


def test_of_parts_that_start_together_with_little_delay_none_is_lost():
    assert not simultaneous_starts.run(80, jitter_s=0.0, delay_s=0.001, hidden_s=0.02)
