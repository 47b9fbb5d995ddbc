"""Compiler flags, the compilation cache and fixtures that all tests share."""

from __future__ import annotations

import atexit
import gc
import importlib.metadata
import os
import shutil
import signal
import tempfile

import pytest

# JAX reads these variables when it is imported; workers and programs under test inherit them. Most tests compile for
# longer than they compute: they compile without optimizations, `optimized` ones at level 1 instead of the default 3. A
# program is compiled in one part: in 32, which threads share, it takes half as long again. In jaxlib 0.10, fusion
# emitters take a third of the compilation; later versions have no such flag.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1"]
    + ["--xla_cpu_use_fusion_emitters=false"] * importlib.metadata.version("jaxlib").startswith("0.10.")
).strip()
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Workers, and programs that are killed, leave temporary files behind: those of all are deleted when the first process
# ends. pytest's own, which it keeps for three runs, stay where they are.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="depthmup-tests-")
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="compiled-"))
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="cache-home-")

# A shell ignores Ctrl-C in what it starts in the background, and the launchers under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Files with slow tests of half a minute and more, the longest first.
LONG = ("programs_test.py", "docs_test.py", "distributed_test.py", "examples_test.py")
LONG += ("blocks_test.py", "kills_test.py", "coordinate_check_test.py")


@pytest.hookimpl(trylast=True)  # of the tests that are selected
def pytest_collection_modifyitems(items):
    """Each worker, which starts with a contiguous part of the tests, begins with its share of the long ones.

    At the end of a worker's part, nobody could steal them, and the other cores would wait.
    """
    is_long = lambda item: item.path.name in LONG and item.get_closest_marker("slow") is not None
    long = sorted(filter(is_long, items), key=lambda item: LONG.index(item.path.name))
    others = [item for item in items if not is_long(item)]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    bounds = [len(others) * worker // workers for worker in range(workers + 1)]
    parts = [[*long[i::workers], *others[bounds[i] : bounds[i + 1]]] for i in range(workers)]
    items[:] = [item for part in parts for item in part]


def pytest_collection_finish():
    """What is imported and collected stays: the garbage collector need not look at it again, nor often at traces."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20)


@pytest.fixture
def logged(caplog):
    """What the package logs, progress too: ``logged.text``."""
    caplog.set_level("INFO", logger="depthmup_flax")
    return caplog


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The work directory of a run of `small_runs.config` that nothing happens to; to be copied before it is changed."""
    from small_runs import config

    from depthmup_flax.trainer.loop import train_and_evaluate

    workdir = tmp_path_factory.mktemp("undisturbed")
    train_and_evaluate(config(), workdir)
    return workdir


@pytest.fixture
def float64():
    """Double precision, for comparisons of two forms of the same network."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def optimized():
    """Programs of the module are optimized: for tests that compute for longer than they compile."""
    import jax

    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def unoptimized():
    """One test of an `optimized` module without optimizations."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
