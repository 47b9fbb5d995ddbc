"""A work directory holds one kind of work, and one process at a time writes to it.

Every command claims it here before it computes or writes. On a disk the claim is a lock of the kernel, which ends with
its process. In a bucket it is the file ``.claim``, which names its process and outlives a process that is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import pathlib
import platform
import time
from collections.abc import Iterator

from depthmup_flax.storage.files import HALF_WRITTEN, REMEDY, as_path, create, is_bucket, read_json, writing_to
from depthmup_flax.util.errors import Busy, InputError, RunStopped

log = logging.getLogger(__name__)

MARK = "workdir.json"  # written at the first claim: {"kind": "sweep"}
WAIT_S = 5.0  # for a process that is about to end

RUN, SWEEP, TUNE, FORECAST = "run", "sweep", "tune", "forecast"
COORD_CHECK, REPORT = "coord_check", "report"
NAMES = {
    RUN: "a training run",
    SWEEP: "a sweep",
    TUNE: "a search for hyperparameters",
    FORECAST: "a forecast",
    COORD_CHECK: "a coordinate check",
    REPORT: "a report",
}
_UNKNOWN = ("config.json", "result.json", "checkpoints", "records*.jsonl*")  # another program may have written these


@dataclasses.dataclass(frozen=True)
class Claim:
    """A work directory that this process may write to."""

    workdir: pathlib.Path
    file: pathlib.Path  # exists while the claim holds

    def check(self) -> None:
        """Raises `RunStopped` if a directory on a disk was deleted or renamed; call it between steps."""
        if not is_bucket(self.workdir) and not self.file.exists():
            where = f"workdir {str(self.workdir)!r} was deleted or renamed while it was in use"
            raise RunStopped(f"{where}: restore it, then {REMEDY}")

    @property
    def is_alone(self) -> bool:
        """Whether no other part of the work is running."""
        others = (path for path in self.workdir.glob(".lock*") if path.name != self.file.name)
        return not any(map(in_use, others))

    def require_alone(self) -> None:
        """Raises `InputError` if another part of the work is running, before what all share is deleted."""
        if not self.is_alone:
            raise InputError(f"workdir {str(self.workdir)!r} is in use by another process: stop that one first.")

    def remove_half_written(self) -> None:
        """Removes files that a process which was killed has left between writing and renaming them."""
        if self.is_alone:
            for path in self.workdir.glob(f"{HALF_WRITTEN}*"):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def claimed(path: str | os.PathLike[str], kind: str, *, lock: str = ".lock", flag: str = "workdir") -> Iterator[Claim]:
    """Opens a work directory for one kind of work; creates it if absent.

    Args:
      path: as typed.
      kind: one of the constants of this module.
      lock: name of the lock file, which one process holds at a time; each part of a sweep has its own.
      flag: that names the directory, for messages.

    Raises:
      InputError: the directory cannot be written, or holds another kind of work; it is unchanged.
      Busy: another process holds the lock.
      RunStopped: the disk is full, or cannot be written any more inside the context.
    """
    workdir = as_path(path)
    with contextlib.ExitStack() as stack:
        with writing_to(workdir):
            try:
                _mark(workdir, kind)
                hold = _claim_file if is_bucket(workdir) else _file_lock
                file = stack.enter_context(hold(workdir / lock))
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                    raise
                raise InputError(
                    f"{flag} {str(workdir)!r} cannot be written to ({error.strerror or error}): choose another."
                ) from error
        stack.enter_context(writing_to(workdir))
        claim = Claim(workdir, file)
        claim.remove_half_written()
        try:
            yield claim
        except Exception:
            claim.check()  # a library that writes to a directory that is gone raises errors of its own
            raise


@contextlib.contextmanager
def _file_lock(path: pathlib.Path) -> Iterator[pathlib.Path]:
    import filelock

    lock = filelock.FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=WAIT_S)
    except filelock.Timeout as error:
        raise Busy(
            f"workdir {str(path.parent)!r} is in use by another process: rerun later, or use another."
        ) from error
    try:
        yield path
    finally:
        lock.release()


@contextlib.contextmanager
def _claim_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """``.claim`` for ``.lock``; a claim of this machine whose process is gone is replaced."""
    path = path.with_name(path.name.replace(".lock", ".claim"))
    if path.exists():
        other = read_json(path, "delete it, and rerun the command")
        if other["host"] != platform.node() or (other["pid"] != os.getpid() and _is_running(other["pid"])):
            raise Busy(
                f"workdir {str(path.parent)!r} is in use by process {other['pid']} on {other['host']} since "
                f"{other['started']}: wait for it. If it has ended, delete {path} and rerun the command."
            )
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    path.write_text(json.dumps({"host": platform.node(), "pid": os.getpid(), "started": started}))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def in_use(path: pathlib.Path) -> bool:
    """Whether a process holds a lock file, or a claim file exists."""
    if is_bucket(path):
        return path.with_name(path.name.replace(".lock", ".claim")).exists()
    import filelock

    try:
        with filelock.FileLock(path, timeout=0):
            return False
    except filelock.Timeout:
        return True


def require_kind(workdir: pathlib.Path, kind: str, remedy: str) -> None:
    """Raises `InputError`, which ends with ``remedy``, unless a directory can be read as this kind of work."""
    name, wanted = repr(str(workdir)), NAMES[kind].removeprefix("a ")
    if not workdir.is_dir():
        raise InputError(f"{name} {'is a file' if workdir.exists() else 'does not exist'}: {remedy}.")
    if (present := kind_of(workdir)) != kind:
        holds = f"no {wanted}" if present is None else f"{NAMES[present]}, not {NAMES[kind]}"
        raise InputError(f"{name} holds {holds}: {remedy}.")


def kind_of(workdir: pathlib.Path) -> str | None:
    """The kind of work that a directory holds, or ``None``; `InputError` for unknown work, or a damaged mark."""
    mark = workdir / MARK
    if mark.exists():
        named = read_json(mark, "restore it, or choose another directory").get("kind")
        if named not in tuple(NAMES):  # which may be of any type
            raise InputError(f"{mark} has the unknown kind {named!r}: choose another directory.")
        return str(named)
    if (workdir / "sweep.json").exists():  # copied records without the mark
        return SWEEP
    for path in (path for name in _UNKNOWN for path in workdir.glob(name)):
        if not path.is_dir() or any(path.iterdir()):  # an empty folder may be the user's, for checkpoints
            holds = f"holds {path.name!r}, which another program may have written"
            raise InputError(f"workdir {str(workdir)!r} {holds}: choose another directory.")
    return None


def _mark(workdir: pathlib.Path, kind: str) -> None:
    """Creates the directory and its mark if absent; `InputError` if it holds another kind of work."""
    if not is_bucket(workdir):  # which has no directories
        if workdir.is_absolute() and not workdir.parent.exists():
            log.info("creating %s: there was no %s", workdir, workdir.parent)  # a disk may not be mounted
        workdir.mkdir(parents=True, exist_ok=True)
    if (present := kind_of(workdir)) not in (None, kind):
        raise InputError(f"workdir {str(workdir)!r} holds {NAMES[str(present)]}, not {NAMES[kind]}: choose another.")
    create(workdir / MARK, json.dumps({"kind": kind}) + "\n")
