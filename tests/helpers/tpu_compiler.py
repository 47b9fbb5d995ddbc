"""Skips a module of tests where libtpu, the compiler for TPUs, is not installed; it needs no TPU."""

import os

import pytest

from depthmup_flax.plan.topologies import environment_for

pytest.importorskip("libtpu", reason='libtpu, the compiler for TPUs, is not installed (pip install ".[plan]").')
os.environ.update(environment_for("v5e:2x2", os.environ))
