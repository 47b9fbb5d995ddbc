"""Checkpoints by Orbax: the training state, and a JSON description of it (config, parameter roles, data position)."""

from __future__ import annotations

import copy
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict, unflatten_dict
from orbax.checkpoint import checkpoint_managers as policies

from depthmup_flax.storage.files import as_path, is_bucket, storage_failure
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import ArrayTree, Json

_COMMITTED = "commit_success.txt"  # Orbax's marker of a complete checkpoint in a bucket
_MOST = 160  # characters of a reason


class Checkpointer:
    """The latest ``keep`` checkpoints of a run, written in the background: a folder per step in ``directory``."""

    def __init__(self, directory: pathlib.Path, keep: int) -> None:
        self._directory = directory if is_bucket(directory) else directory.absolute()
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.LatestN(keep),
            cleanup_tmp_directories=True,  # of writers that were killed
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options, item_names=("state", "meta"))

    @property
    def latest_step(self) -> int:
        """Step of the latest checkpoint, which may still be being written; -1 if there is none."""
        latest = self._manager.latest_step()
        return -1 if latest is None else latest

    def save(self, step: int, state: ArrayTree, meta: Mapping[str, object]) -> None:
        """Copies ``state`` off the devices and returns; files are written in the background, atomically."""
        as_now = copy.deepcopy(dict(meta))  # Orbax reads it in the background, while training goes on
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(as_now))
        self._manager.save(step, args=items, force=True)

    def check(self) -> None:
        """Raises the error that ended a save in the background, if there is one; takes no time."""
        self._manager.check_for_errors()

    def wait(self) -> None:
        """Returns when all checkpoints are on disk."""
        self._manager.wait_until_finished()

    def restore(self, abstract_state: ArrayTree) -> tuple[ArrayTree, Json] | None:
        """State and description of the latest checkpoint; ``None`` if there is none.

        Arrays get the shardings of the ``jax.ShapeDtypeStruct`` in ``abstract_state``. `InputError` if it cannot be
        read.
        """
        restored = self._read(state=ocp.args.StandardRestore(abstract_state))
        return None if restored is None else (restored["state"], restored["meta"])

    def latest_meta(self) -> Json | None:
        """Description of the latest checkpoint; reads no arrays."""
        restored = self._read()
        return restored and restored["meta"]

    def _read(self, **items: Any) -> Json | None:
        if self.latest_step < 0:
            return None
        try:
            items["meta"] = ocp.args.JsonRestore()
            restored = self._manager.restore(self.latest_step, args=ocp.args.Composite(**items))
            return {name: jax.block_until_ready(restored[name]) for name in restored}  # files may be read only now
        except Exception as error:  # of whatever type Orbax raises for a damaged file
            if storage_failure(error) is not None:  # `storage.files.writing_to` says it: the checkpoint may be whole
                raise
            raise InputError(
                f"checkpoint {self._directory / str(self.latest_step)} cannot be read ({_reason(error)}): mend that, "
                "or delete its directory to resume from the one before."
            ) from error

    def close(self) -> None:
        """Ends the background threads, after what they are writing."""
        self._manager.close()


def saved_steps(directory: pathlib.Path) -> list[int]:
    """Steps of the complete checkpoints in ``runs/digits/checkpoints``, in order; none if there is no directory."""
    if is_bucket(directory):
        folders = [path.parent.name for path in directory.glob(f"*/{_COMMITTED}")]
    else:
        folders = [path.name for path in directory.glob("*") if path.is_dir()]  # others have Orbax's temporary names
    return sorted(int(name) for name in folders if name.isdecimal() and name.isascii())


def read_checkpoint(path: str | pathlib.Path, parts: Collection[str] = ()) -> tuple[Json, Json]:
    """State, on the first device, and description of a checkpoint such as ``runs/digits/checkpoints/700``.

    The state is a tree of dictionaries: ``carry``, which is what the task's step carries, ``step`` and the running
    averages; with ``parts``, such as ``carry/params``, only those of them. It may have been written on any number of
    devices and processes. `InputError` if it cannot be read.
    """
    folder = as_path(path)
    folder = folder if is_bucket(folder) else folder.absolute()
    try:
        return _read_state(folder / "state", parts), ocp.JsonCheckpointHandler().restore(folder / "meta")
    except Exception as error:  # of whatever type Orbax raises for a damaged file
        raise InputError(f"{path} cannot be read as a checkpoint ({_reason(error)}): name another one.") from error


def _read_state(path: pathlib.Path, parts: Collection[str]) -> Json:
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    handler = ocp.PyTreeCheckpointHandler()
    stored = dict(handler.metadata(path).tree)
    if parts:
        flat = flatten_dict(stored, keep_empty_nodes=True, sep="/")
        within = lambda path: any(f"{path}/".startswith(f"{part}/") for part in parts)
        stored = unflatten_dict({path: leaf for path, leaf in flat.items() if within(path)}, sep="/")
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), stored)
    places = ocp.checkpoint_utils.construct_restore_args(shapes)
    return dict(handler.restore(path, args=ocp.args.PyTreeRestore(shapes, restore_args=places, partial_restore=True)))


def _reason(error: BaseException) -> str:
    """The first line of an error, without the settings that TensorStore adds."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    line = re.split(r"\.? \[tensorstore_spec|\.? See full TensorStore", line)[0]
    return line if len(line) <= _MOST else f"{line[:_MOST]}..."
