"""What all tests share: compiler flags, one compilation cache, precision."""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import shutil
import signal
import tempfile

import pytest

# JAX reads these variables when it is imported, and the workers and the programs under test inherit them.
# The suite compiles much and computes little. Tests of speed ask for the default optimization level, 3. In jaxlib 0.10,
# fusion emitters are a third of the compilation; later versions have no such flag.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=1"]
    + ["--xla_cpu_use_fusion_emitters=false"] * importlib.metadata.version("jaxlib").startswith("0.10.")
).strip()
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE = tempfile.mkdtemp(prefix="depthmup-compiled-")
    atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)

# A shell ignores Ctrl-C in what it starts in the background, and the launchers under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def float64():
    """Double precision, for comparisons of two forms of the same network."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture
def compiled_in_haste():
    """Less optimization still, for programs that compile for longer than they run."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
