"""A work directory holds one kind of work. Every command claims it here before it computes or writes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import types
from collections.abc import Iterator

from depthmup_flax.storage.workdir import bucket_lock, buckets
from depthmup_flax.storage.workdir import lock as file_lock
from depthmup_flax.storage.workdir.files import create, delete_leftovers, read_json, retried
from depthmup_flax.util.errors import InputError, RunStopped

MARK = "workdir.json"  # written at the first claim: {"kind": "sweep"}
_ALONE = ".lock-alone"

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
_UNMARKED = {"sweep.json": SWEEP}  # copied records without the mark
_UNKNOWN = ("config.json", "result.json", "checkpoints", "records*.jsonl*")  # another program may have written these


@dataclasses.dataclass(frozen=True)
class Claim:
    """A work directory that this process may write to."""

    directory: pathlib.Path
    lock: file_lock.Heartbeat

    def check(self, *, now: bool = False) -> None:
        """Raises `RunStopped` if the directory was deleted or renamed, or another process has taken it over.

        Call it between steps: it only reads what a thread finds every `lock.BEAT_S` seconds. Before writes, ``now``
        reads the lock at once.
        """
        self.lock.check(now=now)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which no other process can start in the directory, for deleting what all share.

        Raises:
          InputError: another part of the work is running.
        """
        locks = _locks(self.directory)
        with locks.held(self.directory / _ALONE):
            for path in locks.locks_in(self.directory):
                if path not in (self.lock.path, self.directory / _ALONE) and (other := locks.busy(path)):
                    raise InputError(
                        f"workdir {str(self.directory)!r} is in use by {other}: stop it before you delete its work."
                    )
            yield


def as_path(text: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a work directory as typed: on a disk, with ``~`` expanded, or in a bucket; else `InputError`."""
    if not isinstance(text, (str, os.PathLike)):
        raise InputError(f"the work directory is {text!r}: use a path, such as 'runs/digits'.")
    if not os.fspath(text):
        raise InputError("the work directory is '': name one, such as runs/digits.")
    try:
        os.fspath(text).encode()
    except UnicodeEncodeError as error:  # libraries in C++ refuse such names
        raise InputError(f"workdir {os.fspath(text)!r} is not UTF-8: choose another name.") from error
    if buckets.is_bucket(text):
        return buckets.bucket_path(os.fspath(text))
    if "://" in os.fspath(text):
        raise InputError(
            f"workdir {os.fspath(text)!r} is not supported: use a local directory, or a path in gs:// or s3://."
        )
    try:
        return pathlib.Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"workdir {str(text)!r} cannot be found ({error}): write the whole path.") from error


@contextlib.contextmanager
def claimed(
    path: str | os.PathLike[str], kind: str, *, lock: str = ".lock", wait_s: float | None = None, flag: str = "workdir"
) -> Iterator[Claim]:
    """Opens a work directory for one kind of work; creates it if absent.

    Args:
      path: as typed.
      kind: one of the constants of this module.
      lock: name of the lock file, which one process holds at a time; each part of a sweep has its own.
      wait_s: seconds to wait while another process holds the lock; default `lock.WAIT_S`.
      flag: that names the directory, for messages.

    Raises:
      InputError: the directory cannot be written, or holds another kind of work; it is unchanged.
      Busy: another process holds the lock.
      RunStopped: the disk is full, or cannot be written any more inside the context.
    """
    directory = as_path(path)
    with contextlib.ExitStack() as stack:
        with _opening(directory, flag):
            retried(lambda: _mark(directory, kind))
            locks = _locks(directory)
            claim = Claim(directory, stack.enter_context(locks.held(directory / lock, wait_s)))
            if not buckets.is_bucket(directory):
                delete_leftovers(directory)
            if locks.busy(directory / _ALONE):
                with locks.held(directory / _ALONE, wait_s):  # until another process has deleted its work
                    retried(lambda: _mark(directory, kind))
        stack.enter_context(writing_to(directory, claim))
        yield claim


def require_kind(directory: pathlib.Path, kind: str, remedy: str) -> None:
    """Raises `InputError`, which ends with ``remedy``, unless a directory can be read as this kind of work."""
    name, wanted = repr(str(directory)), NAMES[kind].removeprefix("a ")
    with buckets.reachable([directory]):
        if not directory.is_dir():
            raise InputError(f"{name} {'is a file' if directory.exists() else 'does not exist'}: {remedy}.")
        try:
            present = kind_of(directory, wait=False)
        except UnknownWork as error:
            raise InputError(f"{name} holds no {wanted}, but {error.file!r} of other work: {remedy}.") from error
    if present != kind:
        holds = f"no {wanted}" if present is None else f"{NAMES[present]}, not {NAMES[kind]}"
        raise InputError(f"{name} holds {holds}: {remedy}.")


class UnknownWork(InputError):
    """A directory holds a ``file`` that another program may have written."""

    def __init__(self, directory: pathlib.Path, file: str) -> None:
        holds = f"holds {file!r}, which another program may have written"
        super().__init__(f"workdir {str(directory)!r} {holds}: choose another directory.")
        self.file = file


def kind_of(directory: pathlib.Path, *, wait: bool = True) -> str | None:
    """The kind of work that a directory holds; ``None`` if it holds none.

    ``wait`` some seconds for the mark beside unknown files: a file server may show it later than newer files.

    Raises:
      UnknownWork: files of unknown work exist.
      InputError: the mark is damaged.
    """
    mark = directory / MARK
    if not mark.exists():
        for name, kind in _UNMARKED.items():
            if (directory / name).exists():
                return kind
        unknown = next((path.name for name in _UNKNOWN for path in directory.glob(name) if not _is_empty(path)), None)
        if unknown is None:
            return None
        try:
            retried(mark.read_bytes) if wait else mark.read_bytes()
        except FileNotFoundError as error:
            raise UnknownWork(directory, unknown) from error
    named = read_json(mark, "restore it, or choose another directory").get("kind")
    if named not in NAMES:
        raise InputError(f"{mark} has the unknown kind {named!r}: choose another directory.")
    return str(named)


def _is_empty(path: pathlib.Path) -> bool:
    """Whether it is a folder without files, or a link to one, such as a user's for checkpoints on a larger disk."""
    return path.is_dir() and not any(path.iterdir())


def _mark(directory: pathlib.Path, kind: str) -> None:
    """Creates the directory and its mark if absent; `InputError` if it holds another kind of work."""
    if not buckets.is_bucket(directory):  # which has no directories
        directory.mkdir(parents=True, exist_ok=True)
    mark = directory / MARK
    if not mark.exists() and kind_of(directory) in (None, kind):
        create(mark, json.dumps({"kind": kind}) + "\n")
    present = kind_of(directory)  # another process may have created the mark
    if present is None:  # a file server does not show it yet
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(mark))
    if present != kind:
        raise InputError(
            f"workdir {str(directory)!r} holds {NAMES[present]}, not {NAMES[kind]}: choose another directory."
        )


def _locks(directory: pathlib.Path) -> types.ModuleType:
    return bucket_lock if buckets.is_bucket(directory) else file_lock


@contextlib.contextmanager
def _opening(directory: pathlib.Path, flag: str) -> Iterator[None]:
    """Turns errors of the first writes into one sentence; most mean a wrong directory."""
    try:
        yield
    except (InputError, RunStopped):
        raise
    except Exception as error:
        if buckets.is_bucket(directory) and (sentence := buckets.opening_error(directory, error)):
            raise sentence from error
        if buckets.is_bucket(directory) or not isinstance(error, OSError):
            raise
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE):
            raise RunStopped(
                f"{flag} {str(directory)!r} cannot be written to ({reason}): free space or repair the disk, then rerun."
            ) from error
        if directory.is_symlink() and not directory.exists():
            reason = "it is a link to nothing"
        elif directory.exists() and not directory.is_dir():
            reason = "it is a file"
        raise InputError(f"{flag} {str(directory)!r} cannot be written to ({reason}): choose another.") from error


@contextlib.contextmanager
def writing_to(directory: pathlib.Path, claim: Claim | None = None) -> Iterator[None]:
    """Turns write errors of any library into one sentence.

    Raises:
      RunStopped: the disk is full, read-only or unreachable, or the directory was deleted or renamed. Libraries may
        have created it again; a ``claim`` finds that, too.
    """
    try:
        yield
    except (InputError, RunStopped):
        raise
    except Exception as error:
        if buckets.is_bucket(directory):
            if sentence := buckets.stopped(directory, error):
                raise sentence from error
            raise
        if reason := _write_failure(error):
            remedy = f"make room or make it writable, then {file_lock.REMEDY}"
            raise RunStopped(f"workdir {str(directory)!r} cannot be written any more ({reason}): {remedy}") from error
        if not directory.exists():
            raise RunStopped(f"workdir {str(directory)!r} {file_lock.DELETED}") from error
        if claim is not None:
            claim.check(now=True)
        raise


_FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_WRITE_ERRORS = (*_FULL_OR_READ_ONLY, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM)


def _write_failure(error: BaseException) -> str | None:
    """The system's message if ``error`` or one of its causes is a failed write."""
    for cause in buckets.causes(error):
        if isinstance(cause, OSError) and cause.errno in _WRITE_ERRORS:
            return os.strerror(cause.errno)
        # Orbax's storage library gives the message without the number.
        for message in map(os.strerror, _FULL_OR_READ_ONLY):
            if message in str(cause):
                return message
    return None
