"""Several processes as one program: start, shared decisions, exit.

Every process runs the same program with the same config on its own devices. Only process 0 logs and writes metrics.
With one process these calls are no-ops.
"""

import glob
import importlib.util
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from depthmup_flax.util.errors import Busy, InputError, RunStopped
from depthmup_flax.util.types import Json

T = TypeVar("T")

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 300
_SHUTDOWN_TIMEOUT_S = 300  # process 0 may still be writing a checkpoint
_MOST_NAMED = 5  # differences in a sentence

_SLURM_STEP = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_ADDRESS, _COUNT, _ID = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def start(coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None) -> bool:
    """Joins the other processes; call before JAX starts. Returns whether there may be others.

    Without arguments the environment decides: ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and
    ``JAX_PROCESS_ID``; a Slurm step with more than one task; or a Cloud TPU machine (also under Kubernetes), where JAX
    finds the others. Otherwise there is one process. Processes other than 0 log only errors of this package.

    Args:
      coordinator: the ``host:port`` at which all processes reach process 0.
      num_processes: their number.
      process_id: of this one, from 0.

    Raises:
      InputError: an argument is missing or invalid.
    """
    if (coordinator, num_processes, process_id) == (None, None, None):
        coordinator, num_processes, process_id = _from_environment()
    cluster: Json = {}
    if (coordinator, num_processes, process_id) != (None, None, None):
        cluster = _checked_cluster(coordinator, num_processes, process_id)
    elif not (_in_slurm_step() or _on_cloud_tpu()):
        return False
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
    if not everywhere(refusal is None):
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
    """Compares ``facts``, named JSON values, of all processes.

    Raises:
      InputError: in all processes, if they differ; names fields, values and processes.
    """
    if jax.process_count() == 1:
        return
    ours = json.dumps({"--num_processes": jax.process_count(), **facts})
    of_all: list[Json] = [json.loads(text) for text in _gathered(ours)]
    differing = []
    for name in dict.fromkeys(name for theirs in of_all for name in theirs):
        values = [repr(theirs.get(name)) for theirs in of_all]
        if len(set(values)) > 1:
            having = {value: values.index(value) for value in values[::-1]}  # -> the first process
            found = sorted(having.items(), key=lambda item: item[1])
            differing.append(f"{name} is " + ", ".join(f"{value} in process {first}" for value, first in found))
    if differing:
        more = [f"and {len(differing) - _MOST_NAMED} more differ"] * (len(differing) > _MOST_NAMED)
        raise InputError(f"the processes are not the same run: {'; '.join([*differing[:_MOST_NAMED], *more])}.")


def everywhere(condition: bool) -> bool:
    """Whether ``condition`` holds in all processes."""
    return bool(np.all(multihost_utils.process_allgather(np.asarray(condition))))


def _from_environment() -> tuple[str | None, int | None, int | None]:
    if _COUNT not in os.environ and _ID not in os.environ:  # JAX reads the address alone
        return None, None, None
    try:
        count, number = (int(os.environ[name]) if name in os.environ else None for name in (_COUNT, _ID))
    except ValueError as error:
        raise InputError(f"the environment variables {_COUNT} and {_ID}: use whole numbers ({error}).") from error
    return os.environ.get(_ADDRESS), count, number


def _checked_cluster(coordinator: str | None, num_processes: int | None, process_id: int | None) -> Json:
    """Arguments of ``jax.distributed.initialize``."""
    if coordinator is None or num_processes is None or process_id is None or not 0 <= process_id < num_processes:
        raise InputError(
            f"coordinator is {coordinator}, num_processes is {num_processes}, process_id is {process_id}: set all of "
            f"--coordinator=HOST:PORT --num_processes=N --process_id=I, I from 0 to N - 1 (or {_ADDRESS}, {_COUNT} and "
            f"{_ID} in the environment)."
        )
    if process_id == 0 and num_processes > 1:
        log.info("waiting for %d processes at %s, for at most %d s", num_processes, coordinator, _START_TIMEOUT_S)
    return {
        "coordinator_address": coordinator,
        "num_processes": num_processes,
        "process_id": process_id,
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
