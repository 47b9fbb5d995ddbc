"""Programs of these tests compute for longer than they compile."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def optimized_programs(optimized):
    """All modules of this folder are `optimized`."""
