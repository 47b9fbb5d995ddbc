"""JAX's preemption service ends a run at a step that the run reaches, wherever its steps start."""

import subprocess
import sys

import pytest
from joined import free_port

PROGRAM = """
import os, signal, sys, time
import jax
from depthmup_flax.devices.preemption import Preemption

jax.distributed.initialize("127.0.0.1:{port}", 1, 0)
jax.process_count = lambda: 2  # with one process JAX's service is not asked
earlier = [Preemption().reached() for _ in range({earlier})]
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(3)  # JAX's service looks for a signal once a second
print(*earlier, *(Preemption().reached() for _ in range(2)), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    "earlier",
    [
        pytest.param(0, id="before the first step"),
        pytest.param(3, id="between two runs of a process", marks=pytest.mark.slow),
    ],
)
def test_a_signal_between_steps_ends_the_run_at_its_next_step(earlier):
    program = PROGRAM.format(port=free_port(), earlier=earlier)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["False"] * earlier + ["True", "False"]
