"""Several processes as one program: start, shared decisions, exit.

Every process runs the same program with the same config on its own devices. Only process 0 logs and writes metrics.
With one process these calls are no-ops.
"""

import glob
import importlib.util
import json
import logging
import os
import pathlib
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from depthmup_flax.storage.files import HALF_WRITTEN, write_atomically
from depthmup_flax.util.errors import Busy, InputError, RunStopped, listed
from depthmup_flax.util.types import Json

T = TypeVar("T")

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 300
_SHUTDOWN_TIMEOUT_S = 300  # process 0 may still be writing a checkpoint

_SLURM_STEP = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_ADDRESS, _COUNT, _ID = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def start() -> bool:
    """Joins the other processes; call before JAX starts. Returns whether there may be others.

    The environment says so: ``JAX_COORDINATOR_ADDRESS`` (``host:port`` of process 0), ``JAX_NUM_PROCESSES`` and
    ``JAX_PROCESS_ID`` (from 0); a Slurm step with more than one task; or a Cloud TPU machine (also under Kubernetes),
    where JAX finds the others. Otherwise there is one process. Processes other than 0 log only errors of this package.
    """
    cluster: Json = {}
    if _COUNT in os.environ or _ID in os.environ:  # JAX reads the address alone
        cluster = _cluster_of_environment()
    elif not (_in_slurm_step() or _on_cloud_tpu()):
        return False
    jax.config.update("jax_enable_preemption_service", True)  # which Orbax asks, too: without it nothing could be saved
    jax.distributed.initialize(
        **cluster, initialization_timeout=_START_TIMEOUT_S, shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT_S
    )
    if jax.process_index():  # process 0 gives the same warnings
        logging.getLogger("depthmup_flax").setLevel(logging.ERROR)
    return True


def is_first() -> bool:
    """Whether this is process 0, which logs and writes metrics."""
    return jax.process_index() == 0


def leave(code: int) -> NoReturn:
    """Exits at once; ``sys.exit`` would wait for reader threads, which may hang, and for other processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    if jax.distributed.is_initialized() and jax.process_index() == 0:
        time.sleep(2)  # process 0 hosts the coordinator; the others report errors first
    os._exit(code)


def in_all(function: Callable[[], T]) -> T:
    """The result of ``function`` in each process; `InputError` in all if any raises one."""
    if jax.process_count() == 1:
        return function()
    refusal: InputError | None = None
    try:
        result = function()
    except InputError as error:
        refusal = error
    if not np.all(multihost_utils.process_allgather(np.asarray(refusal is None))):
        raise refusal or InputError("another process failed validation. See its log.")
    return result


def on_first(function: Callable[[], T]) -> T:
    """The result of ``function`` (JSON) in process 0, or its `InputError` or `RunStopped`, in all processes.

    For decisions about shared files, which another process could see half written.
    """
    if jax.process_count() == 1:
        return function()
    outcome: Json = {}
    if is_first():
        try:
            outcome["value"] = function()
        except (InputError, RunStopped) as error:
            outcome[type(error).__name__] = str(error)
    ((kind, value),) = json.loads(_gathered(json.dumps(outcome))[0]).items()
    if kind != "value":
        raise {"RunStopped": RunStopped, "Busy": Busy}.get(kind, InputError)(value)
    return value


def require_same(facts: Mapping[str, object]) -> None:
    """Raises `InputError`, in all processes, if their ``facts``, named JSON values, differ."""
    if jax.process_count() == 1:
        return
    ours = json.dumps({"the number of processes": jax.process_count(), **facts})
    of_all: list[Json] = [json.loads(text) for text in _gathered(ours)]
    differing = []
    for name in dict.fromkeys(name for theirs in of_all for name in theirs):
        first: dict[str, int] = {}  # value -> the first process that has it
        for process, theirs in enumerate(of_all):
            first.setdefault(repr(theirs.get(name)), process)
        if len(first) > 1:
            differing.append(f"{name} is " + ", ".join(f"{value} in process {i}" for value, i in first.items()))
    if differing:
        raise InputError(f"the processes are not the same run: {listed(differing)}.")


def require_shared(directory: pathlib.Path) -> None:
    """Raises `InputError`, in all processes, if one does not see what process 0 writes to ``directory``.

    Else all would wait for each other at the first checkpoint.
    """
    if jax.process_count() == 1:
        return

    def written() -> str:
        name = f"{HALF_WRITTEN}shared-{uuid.uuid4().hex}"
        write_atomically(directory / name, "")
        return name

    path = directory / on_first(written)

    def seen() -> None:
        if not path.exists():
            raise InputError(
                f"the work directory {str(directory)!r} of process {jax.process_index()} is not that of process 0: use "
                "one that all hosts share."
            )

    try:
        in_all(seen)
    finally:
        if is_first():
            path.unlink()


def _cluster_of_environment() -> Json:
    """Arguments of ``jax.distributed.initialize``."""
    given = [f"{name}={os.environ.get(name, '')}" for name in (_ADDRESS, _COUNT, _ID)]
    try:
        address, count, number = os.environ[_ADDRESS], int(os.environ[_COUNT]), int(os.environ[_ID])
        if not 0 <= number < count:
            raise ValueError
    except (KeyError, ValueError) as error:
        raise InputError(
            f"the environment has {' '.join(given)}: set all three, {_ADDRESS}=HOST:PORT {_COUNT}=N {_ID}=I, with I "
            "from 0 to N - 1."
        ) from error
    if number == 0 and count > 1:
        log.info("waiting for %d processes at %s, for at most %d s", count, address, _START_TIMEOUT_S)
    return {
        "coordinator_address": address,
        "num_processes": count,
        "process_id": number,
        "cluster_detection_method": "deactivate",  # JAX must not ask a cluster for our devices
    }


def _in_slurm_step() -> bool:
    if not all(name in os.environ for name in _SLURM_STEP):
        return False
    tasks = int(os.environ["SLURM_NTASKS"])
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", tasks)) < tasks:  # the shell of salloc is a step of one task
        raise InputError(
            f"SLURM_NTASKS is {tasks}: this shell has a Slurm allocation of {tasks} tasks, but was not started by "
            "srun. Start the command with srun, or unset SLURM_NTASKS to use one process."
        )
    return tasks > 1


def _on_cloud_tpu() -> bool:
    platforms = os.environ.get("JAX_PLATFORMS", "tpu").split(",")
    chips = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
    return "tpu" in platforms and bool(chips) and importlib.util.find_spec("libtpu") is not None


def _gathered(text: str) -> list[str]:
    """The ``text`` of each process."""
    encoded = np.frombuffer(text.encode(), np.uint8)
    lengths = np.ravel(multihost_utils.process_allgather(np.array([len(encoded)], np.int32)))
    padded = np.zeros(max(lengths), np.uint8)
    padded[: len(encoded)] = encoded
    rows = np.asarray(multihost_utils.process_allgather(padded), np.uint8).reshape(len(lengths), -1)
    return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]
