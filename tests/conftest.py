"""Shared by the tests."""

from __future__ import annotations

import os

# Before JAX starts: the suite compiles much and computes little. Tests of speed ask for the default, 3.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=1".strip()

import jax
import pytest


@pytest.fixture
def float64():
    """Double precision, for comparisons of two forms of the same network."""
    with jax.enable_x64(True):
        yield
