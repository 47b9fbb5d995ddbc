"""Memory that the commands keep: the next allocation of the same size asks the system for no page."""

import os
import subprocess
import sys

import pytest

from depthmup_flax import freed_memory

_TWICE = """
import resource, threading
from depthmup_flax import freed_memory

print(freed_memory.keep_freed_memory())

def allocate():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(100_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def in_a_thread():
    allocate()
    print(allocate())

thread = threading.Thread(target=in_a_thread)
thread.start()
thread.join()
"""


def kept_and_faults(**environment):
    """Whether a process keeps memory, and the page faults of its second allocation."""
    others = {name: value for name, value in os.environ.items() if name not in freed_memory._VARIABLES}
    command = [sys.executable, "-c", _TWICE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=others | environment)
    kept, faults = done.stdout.split()
    return kept == "True", int(faults)


@pytest.mark.skipif(freed_memory._glibc() < freed_memory._OLDEST, reason="the C library is not glibc 2.35")
def test_freed_memory_is_used_again_without_page_faults_unless_the_user_has_set_glibc():
    kept, faults = kept_and_faults(JAX_PLATFORMS="cpu")
    assert kept
    assert faults < 10
    kept, faults = kept_and_faults(JAX_PLATFORMS="cpu", GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072")
    assert not kept
    assert faults > 40  # 48 of 2 MB, or 24,000 of 4 kB


@pytest.mark.parametrize(
    ("version", "platforms", "kept"),
    [("glibc 2.36", "cpu", True), ("glibc 2.34", "cpu", False), ("", "cpu", False), ("glibc 2.36", "tpu,cpu", False)],
)
def test_older_and_other_c_libraries_and_other_devices_are_left_alone(version, platforms, kept, monkeypatch):
    monkeypatch.setattr("os.confstr", lambda name: version)
    assert freed_memory.can_keep_freed_memory({"JAX_PLATFORMS": platforms}) == kept
    assert kept or not freed_memory.keep_freed_memory({"JAX_PLATFORMS": platforms})
