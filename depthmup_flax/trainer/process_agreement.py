"""What must be the same in all processes of a run: config, code, libraries, data and work directory."""

from __future__ import annotations

import hashlib
import os
import pathlib
import time
from typing import Any

import jax
from flax.traverse_util import flatten_dict

from depthmup_flax.data import stored_dataset
from depthmup_flax.devices.process import distributed
from depthmup_flax.storage.records.provenance import settings, versions
from depthmup_flax.trainer.engine.experiment import Experiment
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Json

# A host may have its own copy of the data, and its own number of cores.
_PER_HOST = ("data.data_dir", "data.read_threads")
_VISIBLE_S = 60.0  # until a client of a network file system sees what another has written


def facts(experiment: Experiment, data: Json) -> dict[str, Any]:
    """Named values that differ if the processes would not train the same network on the same ``data``.

    ``data`` is from `depthmup_flax.data.stored_dataset.to_json`.
    """
    fields = flatten_dict(experiment.config.to_dict(), sep=".")
    return {
        **{f"config.{name}": value for name, value in fields.items() if name not in _PER_HOST},
        "the hash of the code": _source_digest(),
        **{f"the version of {name}": version for name, version in versions().items()},
        **settings(),
        **{f"the {name}": value for name, value in stored_dataset.facts(data).items()},
    }


def require_shared(directory: pathlib.Path) -> None:
    """Checks that ``directory``, which process 0 has created, is the same one in all processes.

    Raises:
      InputError: it is not; checkpoints would be written in parts that never meet.
    """

    def mark() -> str:
        name = f".shared-{os.getpid()}-{time.time_ns()}"
        (directory / name).write_text("")
        return name

    def look() -> None:
        until = time.monotonic() + _VISIBLE_S
        while not (directory / name).exists():
            if time.monotonic() > until:
                raise InputError(
                    f"workdir {str(directory)!r} is another directory in process {jax.process_index()} than in process "
                    "0: name a directory on storage that all machines share."
                )
            time.sleep(0.1)

    if jax.process_count() > 1:
        name = distributed.on_first(mark)
        try:
            distributed.in_all(look)
        finally:
            if distributed.is_first():
                (directory / name).unlink(missing_ok=True)


def _source_digest() -> str:
    """Of all files of the package; a commit does not show later edits, and a copy may have no commit."""
    root, digest = pathlib.Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]
