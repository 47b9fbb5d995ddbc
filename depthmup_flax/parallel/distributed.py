"""Several processes as one program: how they start, agree on an outcome, and leave together.

Every process runs the same program on its own devices and sees the same config; the first one alone writes metrics and
talks. With one process all of this is nothing.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from depthmup_flax.errors import InputError, RunStopped

T = TypeVar("T")

# A process that is not heard of for so long is dead, and then all end. Much longer than a compilation pauses a thread.
HEARTBEAT_TIMEOUT_S = 60
START_TIMEOUT_S = 300
# At the end the others are waited for as long: the first may still be writing.
_SHUTDOWN_TIMEOUT_S = 300
_LAST_S = 2.0

_SLURM_STEP = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
# The address's name is JAX's own; the other two complete it where no cluster is recognized.
_ADDRESS, _COUNT, _ID = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def start(coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None) -> bool:
    """Joins the other processes, before JAX is used; returns whether there is anything to join.

    Without arguments the environment decides: ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and
    ``JAX_PROCESS_ID``; a Slurm step with more than one task; a Cloud TPU machine (also under Kubernetes), where JAX
    finds the others by itself. Nothing of these: one process.

    Args:
      coordinator: ``host:port`` where process 0 can be reached by all.
      num_processes: of the whole program.
      process_id: of this one, from 0.

    Raises:
      InputError: the three are not given together, or do not fit.
    """
    if (coordinator, num_processes, process_id) == (None, None, None):
        coordinator, num_processes, process_id = _from_environment()
    if (coordinator, num_processes, process_id) == (None, None, None):
        if not (_in_slurm_step() or _on_cloud_tpu()):
            return False
        cluster: dict[str, Any] = {}
    else:
        found = _complete(coordinator, num_processes, process_id)
        cluster = dict(zip(("coordinator_address", "num_processes", "process_id"), found, strict=True))
        # Else JAX would look for a cluster to tell which devices of the machine are ours.
        cluster["cluster_detection_method"] = "deactivate"
        _require_reachable(*found)
    jax.distributed.initialize(
        **cluster,
        initialization_timeout=START_TIMEOUT_S,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
        shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT_S,
    )
    return True


def joined() -> bool:
    """Whether `start` has found other processes."""
    return jax.distributed.is_initialized()


def process_id() -> int:
    """Of this process, from 0."""
    return jax.process_index()


def leave(code: int) -> NoReturn:
    """Ends this process without waiting for the others, which notice that it is gone.

    The first, which connects them, leaves last, so that those that know themselves why can say it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if joined() and is_first():
        time.sleep(_LAST_S)
    os._exit(code)


def is_first() -> bool:
    """Whether this is the process that writes metrics and talks."""
    return jax.process_index() == 0


def in_all(function: Callable[[], T]) -> T:
    """What ``function`` returns in each process, if none refuses; else all refuse.

    Raises:
      InputError: from ``function``, here or in another process.
    """
    if jax.process_count() == 1:
        return function()
    refusal: InputError | None = None
    result: T | None = None
    try:
        result = function()
    except InputError as error:
        refusal = error
    if not everywhere(refusal is None):
        raise refusal or InputError("another process refuses to start: see what it says.")
    return cast(T, result)


def on_first(function: Callable[[], Any]) -> Any:
    """What ``function`` returns (JSON) in the first process, in all; what it refuses there is refused by all.

    For what concerns shared files: were each process to look by itself, one could see what another has just written.

    Raises:
      InputError, RunStopped: from ``function``.
    """
    if jax.process_count() == 1:
        return function()
    outcome: dict[str, Any] = {}
    if is_first():
        try:
            outcome["value"] = function()
        except (InputError, RunStopped) as error:
            outcome["stopped" if isinstance(error, RunStopped) else "refused"] = str(error)
    outcome = json.loads(_broadcast(json.dumps(outcome)))
    if "refused" in outcome:
        raise InputError(outcome["refused"])
    if "stopped" in outcome:
        raise RunStopped(outcome["stopped"])
    return outcome["value"]


def everywhere(condition: bool) -> bool:
    """Whether ``condition`` holds in all processes."""
    return bool(np.all(multihost_utils.process_allgather(np.asarray(condition))))


def barrier(name: str) -> None:
    """Waits for all processes to come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def _from_environment() -> tuple[str | None, int | None, int | None]:
    numbers: list[int | None] = []
    for name in (_COUNT, _ID):
        text = os.environ.get(name)
        try:
            numbers.append(None if text is None else int(text))
        except ValueError as error:
            raise InputError(f"the environment's {name} is {text!r}: use a whole number.") from error
    if numbers == [None, None]:  # the address alone: of a cluster that JAX recognizes
        return None, None, None
    return os.environ.get(_ADDRESS), numbers[0], numbers[1]


def _complete(coordinator: str | None, num_processes: int | None, process_id: int | None) -> tuple[str, int, int]:
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise InputError(
            f"{' and '.join(name for name in given if name not in missing)} came without {' and '.join(missing)}: give "
            "all three, as --coordinator=HOST:PORT --num_processes=N --process_id=I (or JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES, JAX_PROCESS_ID)."
        )
    assert coordinator is not None
    assert num_processes is not None
    assert process_id is not None
    host, colon, port = coordinator.rpartition(":")
    if not (host and colon and port.isdigit()):
        raise InputError(f"coordinator is {coordinator!r}: use HOST:PORT, where process 0 can be reached.")
    if num_processes < 1:
        raise InputError(f"num_processes is {num_processes}: use a whole number of at least 1.")
    if not 0 <= process_id < num_processes:
        raise InputError(f"process_id is {process_id}: use a whole number from 0 to {num_processes - 1}.")
    return coordinator, num_processes, process_id


def _require_reachable(coordinator: str, num_processes: int, process_id: int) -> None:
    """What JAX would say with a core dump, if at all."""
    host, _, port = coordinator.rpartition(":")
    try:
        socket.getaddrinfo(host.strip("[]"), int(port))
        if process_id == 0:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", int(port)))
    except (OSError, OverflowError) as error:
        raise InputError(f"coordinator is {coordinator!r}, which cannot be used ({error}): choose another.") from error
    if process_id == 0 and num_processes > 1:
        print(f"waiting for {num_processes} processes at {coordinator}, {START_TIMEOUT_S} s at most", flush=True)


def _in_slurm_step() -> bool:
    return all(name in os.environ for name in _SLURM_STEP) and int(os.environ["SLURM_NTASKS"]) > 1


def _on_cloud_tpu() -> bool:
    wanted = os.environ.get("JAX_PLATFORMS", "tpu").split(",")
    chips = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
    return "tpu" in wanted and bool(chips) and importlib.util.find_spec("libtpu") is not None


def _broadcast(text: str) -> str:
    encoded = np.frombuffer(text.encode(), np.uint8)
    (length,) = multihost_utils.broadcast_one_to_all(np.array([len(encoded)], np.int32))
    padded = np.zeros(int(length), np.uint8)
    padded[: len(encoded)] = encoded[: int(length)]  # of another process's text, nothing is taken
    return bytes(np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8)).decode()
