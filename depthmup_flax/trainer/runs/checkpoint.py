"""Checkpoints by Orbax: the training state, and a JSON description of it (config, parameter roles, data position)."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import pathlib
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import jax
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict, unflatten_dict
from orbax.checkpoint import checkpoint_managers as policies

from depthmup_flax.devices.parallel.fingerprints import fingerprint
from depthmup_flax.devices.process import distributed
from depthmup_flax.storage.workdir import buckets
from depthmup_flax.storage.workdir.directory import as_path
from depthmup_flax.storage.workdir.files import delete_tree, is_json, rename_tree, write_atomically
from depthmup_flax.storage.workdir.mirror import COMPLETE, Mirror
from depthmup_flax.trainer.runs.read_failures import of_system, reason
from depthmup_flax.util.errors import InputError, RunStopped
from depthmup_flax.util.types import ArrayTree, Json

log = logging.getLogger(__name__)

_COMMITTED = "commit_success.txt"  # Orbax's marker of a complete checkpoint in a bucket


class Checkpointer:
    """The latest checkpoints of a run and the best one, written in the background.

    Args:
      directory: created if absent; holds one folder per step.
      keep: number of latest checkpoints to keep, besides the one with the highest `score`.
    """

    def __init__(self, directory: pathlib.Path, keep: int) -> None:
        self._mirror = _mirror(directory)
        if self._mirror is not None:
            directory = self._mirror.local
        self._directory = directory if buckets.is_bucket(directory) else directory.absolute()
        self._failure: BaseException | None = None  # of the background threads
        self._wait_for_others = ocp.multihost.get_barrier_sync_fn()
        latest = policies.LatestN(keep)
        best = policies.BestN(n=1, get_metric_fn=score, keep_checkpoints_without_metrics=False)
        # A single process waits for storage without limit, as the clock may jump. One of several must time out, as the
        # others wait for it. The timeout for creating directories in the background cannot be set.
        several = jax.process_count() > 1
        in_background = ocp.options.AsyncOptions(barrier_sync_fn=self._meet, create_directories_asynchronously=several)
        if not several:
            in_background.timeout_secs = 10**9
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([latest, best]),
            best_fn=score,  # Orbax then stores the metrics, so that the best is known after a restart
            async_options=in_background,
        )
        if distributed.is_first():
            # Orbax would delete these in the background, perhaps while the same step is saved again.
            for folder in _incomplete(self._directory):
                delete_tree(folder)
            for metrics in self._directory.glob("*/metrics/metrics"):
                if not is_json(metrics.read_bytes()):  # Orbax would fail to open the directory
                    log.warning("checkpoint %s: its metrics are damaged and are deleted.", metrics.parents[1])
                    delete_tree(metrics.parent)
        distributed.barrier("open checkpoints")
        self._manager = ocp.CheckpointManager(self._directory, options=options, item_names=("state", "meta"))

    @property
    def latest_step(self) -> int:
        """Step of the latest checkpoint, which may still be being written; -1 if there is none."""
        latest = self._manager.latest_step()
        return -1 if latest is None else latest

    def save(
        self, step: int, state: ArrayTree, meta: Mapping[str, object], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Copies ``state`` off the devices and returns; the files are then written in the background, atomically.

        ``step`` is larger than that of every checkpoint. The `score` of ``metrics`` selects the best checkpoint.
        """
        description = {**meta, "fingerprint": fingerprint(state)}
        description["digest"] = _digest(description)
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(description))
        saved = self._manager.save(step, args=items, metrics=None if metrics is None else dict(metrics), force=True)
        if not saved:
            raise RuntimeError(f"checkpoint {step} was not written: {self._directory} holds a later one.")
        if self._mirror is not None:
            self._manager.wait_until_finished()
            self._mirror.upload()

    def check(self) -> None:
        """Raises the error that ended a save in the background, if there is one; takes no time."""
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Returns when all checkpoints are on disk."""
        self._manager.wait_until_finished()

    def restore(self, abstract_state: ArrayTree) -> tuple[ArrayTree, Json] | None:
        """State and description of the latest intact checkpoint; ``None`` if there are no checkpoints.

        A checkpoint is damaged if it cannot be read or differs from what was saved in any bit. Damaged checkpoints
        newer than the restored one are renamed to ``<step>.damaged``, with a warning. Arrays get the shardings of the
        ``jax.ShapeDtypeStruct`` in ``abstract_state``.

        Raises:
          InputError: all checkpoints are damaged. None is renamed.
          RunStopped: the system does not let a checkpoint be read, such as for a lack of memory; or one of several
            processes finds the latest checkpoint damaged, and the next attempt renames it.
        """
        damaged: dict[int, str] = {}
        self._rename_reported()
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                restored = self._read(step, abstract_state)
            except RunStopped:
                raise
            except Exception as error:  # of whatever type Orbax raises for a damaged file
                damaged[step] = reason(error)
            else:
                for damaged_step, problem in damaged.items():
                    self._rename_damaged(damaged_step, problem)
                return restored
        if damaged:
            raise InputError(
                f"no checkpoint in {self._directory} can be read ({damaged[max(damaged)]}): restore the "
                "files, choose another workdir, or pass --overwrite to restart the run."
            )
        return None

    def _read(self, step: int, abstract_state: ArrayTree) -> tuple[ArrayTree, Json]:
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state), meta=ocp.args.JsonRestore())
        try:
            restored = self._manager.restore(step, args=items)
            state, meta = jax.block_until_ready(restored["state"]), restored["meta"]  # files may be read only now
            if meta["digest"] != _digest(meta):
                raise ValueError("its description is not the saved one")
        except Exception as error:
            self._require_access(step, error)
            if jax.process_count() == 1:
                raise
            write_atomically(self._report(step), reason(error) + "\n")
            raise RunStopped(
                f"checkpoint {self._directory / str(step)} cannot be read ({reason(error)}): rerun the command, "
                f"which renames it to {step}.damaged and resumes from the previous one."
            ) from error
        if meta["fingerprint"] != fingerprint(state):
            raise ValueError("its numbers are not the saved ones")
        return state, meta

    def latest_meta(self) -> Json | None:
        """Description of the latest checkpoint whose description is intact; reads no arrays."""
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                meta = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
                if meta["digest"] == _digest(meta):
                    return meta
            except Exception as error:  # damaged: `restore` warns about it
                self._require_access(step, error)
                log.debug("checkpoint %d: %s", step, error)
        return None

    def close(self) -> None:
        """Ends the background threads, after what they are writing."""
        self._manager.close()
        if self._mirror is not None:
            self._mirror.close()

    def _require_access(self, step: int, error: Exception) -> None:
        """Raises `RunStopped` if ``error`` is about the machine, its storage or a bucket, and not about the content."""
        folder = self._directory / str(step)
        if buckets.is_bucket(folder) and (sentence := buckets.stopped(self._directory, error, absent=False)):
            raise sentence from error
        if problem := of_system(error, folder):
            raise RunStopped(
                f"checkpoint {folder} cannot be read ({problem}): it is kept as it is. Mend that, then rerun the "
                "command to resume."
            ) from error

    def _meet(self, *, key: str, timeout_ms: int) -> None:
        """The barrier that Orbax's threads call between the parts of a save.

        They also call it after an error. Then the others wait elsewhere, until a timeout, for what was not done.
        """
        error = sys.exception()
        # The main thread may save while it handles an exception of something else.
        if error is None or threading.current_thread() is threading.main_thread():
            self._wait_for_others(key=key, timeout_ms=timeout_ms)
        else:
            self._failure = error

    def _report(self, step: int) -> pathlib.Path:
        return self._directory / f"{step}.unreadable"

    def _rename_reported(self) -> None:
        """Renames the checkpoints that a process of the previous attempt reported as unreadable."""
        steps = sorted(self._manager.all_steps())
        reported = distributed.on_first(lambda: [step for step in steps if self._report(step).exists()])
        for step in reported:
            if len(reported) < len(steps):
                self._rename_damaged(step, "a process could not read it in the previous attempt")
            if distributed.is_first():
                self._report(step).unlink()

    def _rename_damaged(self, step: int, problem: str) -> None:
        source = self._directory / str(step)
        suffixes = itertools.chain([""], map(".{}".format, itertools.count(1)))
        targets = (self._directory / f"{step}.damaged{suffix}" for suffix in suffixes)
        target = next(path for path in targets if not path.exists())
        if distributed.is_first():
            message = "checkpoint %s cannot be read (%s): it is renamed to %s, and the previous one is used."
            log.warning(message, source, problem, target.name)
            rename_tree(source, target)
        distributed.barrier(f"rename {step}")
        self._manager.reload()


def _incomplete(directory: pathlib.Path) -> list[pathlib.Path]:
    """Checkpoints whose writer was killed: by name on a disk; in a bucket, those without Orbax's marker."""
    if not buckets.is_bucket(directory):
        return list(directory.glob("*.orbax-checkpoint-tmp*"))
    complete = {marker.parent.name for marker in directory.glob(f"*/{_COMMITTED}")}
    return [folder for folder in directory.glob("*") if folder.name.isdigit() and folder.name not in complete]


def _mirror(directory: pathlib.Path) -> Mirror | None:
    """A local copy of a directory to which Orbax cannot write."""
    if not str(directory).startswith("s3://"):
        return None
    if jax.process_count() > 1:
        raise InputError(
            f"{directory}: several processes cannot write one checkpoint to S3. Use gs://, or a disk that all share."
        )
    return Mirror(directory)


def saved_steps(directory: pathlib.Path) -> list[int]:
    """Steps of the complete checkpoints in ``runs/digits/checkpoints``, in order; none if there is no directory."""
    if not buckets.is_bucket(directory):
        folders = [path.name for path in directory.glob("*") if path.is_dir()]  # others have Orbax's temporary names
    else:
        marker = COMPLETE if str(directory).startswith("s3://") else _COMMITTED
        folders = [path.parent.name for path in directory.glob(f"*/{marker}")]
    return sorted(int(name) for name in folders if name.isdigit())


def score(metrics: Mapping[str, float]) -> float:
    """By which checkpoints are compared: the evaluated accuracy, or the negative loss of what has no accuracy."""
    named = {name.partition("_")[2]: value for name, value in metrics.items()}
    return float(named["accuracy"] if "accuracy" in named else -named["loss"])


def best_step(directory: pathlib.Path) -> int | None:
    """The step with the highest `score`, of equal ones the latest; ``None`` if none was evaluated."""
    scores = {}
    for step in saved_steps(directory):
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):  # not evaluated, or damaged
            metrics = json.loads((directory / str(step) / "metrics" / "metrics").read_bytes())
            scores[step] = score(metrics)
    return max(scores, key=lambda step: (scores[step], step), default=None)


def read_checkpoint(path: str | pathlib.Path, parts: Collection[str] = ()) -> tuple[Json, Json]:
    """State, on the first device, and description of a checkpoint such as ``runs/digits/checkpoints/700``.

    The state is a tree of dictionaries: ``carry``, which is what the task's step carries, ``step`` and the running
    averages; with ``parts``, such as ``carry/params``, only those of them. It may have been written on any number of
    devices and processes.

    Raises:
      InputError: there is no checkpoint, or it is damaged.
      RunStopped: the system does not let it be read.
    """
    path = as_path(path)
    try:
        with _on_disk(path) as folder:
            meta = ocp.JsonCheckpointHandler().restore(folder / "meta")
            state = _read_state(folder / "state", parts)
        # The order of arrays in the saved state is another one.
        saved, read = Counter(meta["fingerprint"]), Counter(fingerprint(state))
        if meta["digest"] != _digest(meta) or not (read <= saved if parts else read == saved):
            raise ValueError("its numbers are not the saved ones")
    except Exception as error:  # of whatever type Orbax raises for a damaged file
        if path.is_dir() and (problem := of_system(error, path)):
            raise RunStopped(f"checkpoint {path} cannot be read ({problem}): mend that, then try again.") from error
        raise InputError(f"{path} cannot be read as a checkpoint ({reason(error)}): name another one.") from error
    return state, meta


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


@contextlib.contextmanager
def _on_disk(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A checkpoint where Orbax can read it: itself, or a temporary copy of one in S3."""
    if not str(path).startswith("s3://"):
        yield path if buckets.is_bucket(path) else path.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="depthmup-checkpoint-") as copy:
        buckets.file_system(path).get(f"{path}/", f"{copy}/", recursive=True)
        yield pathlib.Path(copy)


def _digest(meta: Mapping[str, object]) -> str:
    text = json.dumps({name: value for name, value in meta.items() if name != "digest"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
