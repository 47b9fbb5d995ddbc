"""A signal ends a run at a step that it reaches, wherever its steps start, and the second Ctrl-C at once."""

import os
import signal
import subprocess
import sys

import pytest
from joined import free_port

from depthmup_flax.devices.preemption import Preemption

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


TWICE = """
import os, signal
from depthmup_flax.devices.preemption import Preemption

with Preemption():
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_script_ends_at_the_second_interrupt_with_one_line():
    ended = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=False)
    assert ended.returncode == 130
    assert len(ended.stderr.splitlines()) == 1


def test_the_second_interrupt_is_a_keyboard_interrupt():
    with Preemption():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
