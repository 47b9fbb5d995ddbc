"""Shared by the tests."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture
def float64():
    """Double precision, for comparisons of two forms of the same network."""
    with jax.enable_x64(True):
        yield
