"""``train.py`` as several processes of one program, joined by gloo; they are forked from one that has imported it."""

import os
import runpy
import socket
import sys
import time

import processes


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Joined:
    """``count`` processes with ``devices`` devices each; ``own`` gives further arguments of a process."""

    def __init__(self, directory, count, devices, *arguments, own=lambda index: (), program=None):
        directory.mkdir(parents=True, exist_ok=True)
        shared = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": str(count)}
        shared["JAX_ENABLE_PREEMPTION_SERVICE"] = "0"  # checkpoints need the service, and a cluster may turn it off
        self.running = [
            processes.Process(
                directory / f"{index}.log",
                in_environment,
                {**shared, "JAX_PROCESS_ID": str(index)} if count > 1 else {},
                program or train_py,
                [*arguments, *own(index)],
                devices,
            )
            for index in range(count)
        ]

    def wait_for(self, text, timeout_s=180):
        """Until process 0 has printed ``text``."""
        until = time.monotonic() + timeout_s
        while text not in self.running[0].text():
            assert time.monotonic() < until, self.text()
            assert all(process.running() for process in self.running), self.text()
            time.sleep(0.02)

    def wait(self, timeout_s=180):
        """Exit codes of all processes; TimeoutError if one is still running after ``timeout_s`` seconds."""
        until = time.monotonic() + timeout_s
        return [process.wait(max(0.1, until - time.monotonic())) for process in self.running]

    def text(self):
        return "\n\n".join(process.text() for process in self.running)


def in_environment(variables, program, arguments, devices):
    os.environ.update(variables)
    return program(arguments, devices)


def train_py(arguments, devices):
    """``python train.py``; its exit code."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_disable_most_optimizations", True)
    os.chdir(processes.ROOT)
    sys.path.insert(0, str(processes.ROOT))
    sys.argv = ["train.py", *arguments]
    try:
        runpy.run_path("train.py", run_name="__main__")
    except SystemExit as end:
        if jax.distributed.is_initialized():
            jax.distributed.shutdown()  # as when the interpreter exits, which a forked process does not
        return end.code or 0


def train_py_at_home(homes, arguments, devices):
    """`train_py` with a home directory of the process's own."""
    os.environ["HOME"] = str(homes / os.environ["JAX_PROCESS_ID"])
    return train_py(arguments, devices)


def train_py_with_cache_home(home, arguments):
    """`train_py` with that directory for the user's caches; prints how many programs it read and compiled."""
    import jax

    os.environ["XDG_CACHE_HOME"] = str(home)

    events = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
    jax.config.update("jax_compilation_cache_dir", None)
    code = train_py(arguments, 1)
    print("read", events.count("cache_hits"), "compiled", events.count("cache_misses"))
    return code
