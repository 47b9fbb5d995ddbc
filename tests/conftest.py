"""Shared by the tests."""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import shutil
import signal
import tempfile

# Before JAX starts: the suite compiles much and computes little. Tests of speed ask for the default, 3.
# Of jaxlib 0.10, fusion emitters are a third of the compilation; later ones have no such flag.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=1"]
    + ["--xla_cpu_use_fusion_emitters=false"] * importlib.metadata.version("jaxlib").startswith("0.10.")
).strip()

import jax
import pytest

# What one test compiled, the next (and the programs that tests start) need not compile again.
_CACHE = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
if not _CACHE:
    _CACHE = tempfile.mkdtemp(prefix="compiled-")
    atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
for _name, _value in (
    ("jax_compilation_cache_dir", _CACHE),
    ("jax_persistent_cache_min_compile_time_secs", 0),
    ("jax_persistent_cache_min_entry_size_bytes", -1),
):
    os.environ[_name.upper()] = str(_value)
    jax.config.update(_name, _value)

# A shell ignores Ctrl-C in what it starts in the background, and the launchers under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def float64():
    """Double precision, for comparisons of two forms of the same network."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def compiled_in_haste():
    """For programs that compile for longer than they run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


# Files that take longest, first: a worker that begins one of them last would keep the others waiting.
_LONGEST = [
    "coord_check",
    "fault",
    "sweep_figures",
    "sweep",
    "models",
    "distributed",
    "growth",
    "theory_training",
    "trainer",
    "theory",
    "foreign",
    "sharding",
    "limits_theory",
    "limits_phases",
    "text",
    "limits_run",
    "slurm",
    "optim",
    "launch_tpu",
    "launch_gke",
    "cli",
    "models_optimized",
    "launch",
    "input",
]


def pytest_collection_modifyitems(items):
    """The order of `_LONGEST`; within a file it stays."""
    places = {f"{name}_test.py": place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
