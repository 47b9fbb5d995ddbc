"""A work directory holds one kind of work: every command claims it here, before it computes or writes anything."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
from collections.abc import Iterator

from depthmup_flax.errors import InputError, RunStopped
from depthmup_flax.workdir.files import create, read_json
from depthmup_flax.workdir.lock import WAIT_S, Lock, held

MARK = "workdir.json"  # written at the first claim: {"kind": "sweep"}

RUN, SWEEP, TUNE, LIMITS, COORD_CHECK, REPORT = "run", "sweep", "tune", "limits", "coord_check", "report"
_NAMES = {
    RUN: "a training run",
    SWEEP: "a sweep",
    TUNE: "a search for hyperparameters",
    LIMITS: "a theory figure",
    COORD_CHECK: "a coordinate check",
    REPORT: "a report",
}
# Directories of earlier versions have no mark; the first of these files tells what they hold.
_UNMARKED = {
    "tuned.py": TUNE,
    "sweep.json": SWEEP,
    "limits.json": LIMITS,
    "config.json": RUN,
    "result.json": RUN,
    "checkpoints": RUN,
    "details.txt": COORD_CHECK,
    "report.html": REPORT,
}


@dataclasses.dataclass(frozen=True)
class Claim:
    """A work directory that this process may write to."""

    directory: pathlib.Path
    lock: Lock

    def check(self) -> None:
        """Returns at once if the directory is still this process's; call it between steps and before writing.

        Raises:
          RunStopped: the directory was deleted or renamed, or another process has taken it over.
        """
        self.lock.check()


def as_path(text: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a work directory that a user has typed, with ``~`` expanded.

    Raises:
      InputError: the home directory of a user is not known.
    """
    try:
        return pathlib.Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"workdir {str(text)!r} cannot be found ({error}): write the whole path.") from error


@contextlib.contextmanager
def claimed(path: str | os.PathLike[str], kind: str, *, lock: str = ".lock", wait_s: float = WAIT_S) -> Iterator[Claim]:
    """Opens a work directory for one kind of work; creates it if absent.

    Args:
      path: as the user typed it.
      kind: one of the constants of this module.
      lock: name of the lock file, which only one process holds at a time; parts of a sweep have one each.
      wait_s: how long to wait while another process holds the lock, in seconds.

    Raises:
      InputError: the directory cannot be written, or holds another kind of work. Nothing in it has changed then.
      Busy: another process holds the lock.
      RunStopped: the disk is full, or, inside the context, cannot be written any more.
    """
    directory = as_path(path)
    with contextlib.ExitStack() as stack:
        with _opening(directory):
            directory.mkdir(parents=True, exist_ok=True)
            _mark(directory, kind)
            claim = Claim(directory, stack.enter_context(held(directory / lock, wait_s)))
        stack.enter_context(writing_to(directory))
        yield claim


def kind_of(directory: pathlib.Path) -> str | None:
    """The kind of work that a directory holds; ``None`` if it holds none.

    Raises:
      InputError: the mark is damaged, or there are records of unknown work.
    """
    if (directory / MARK).exists():
        kind = read_json(directory / MARK, f"restore it, or write {{'kind': ...}} with one of {', '.join(_NAMES)}").get(
            "kind"
        )
        if kind not in _NAMES:
            raise InputError(f"{directory / MARK} names the unknown kind {kind!r}: choose another directory.")
        return str(kind)
    for name, kind in _UNMARKED.items():
        if (directory / name).exists():
            return TUNE if kind == SWEEP and _is_search(directory / name) else kind
    if any(directory.glob("records*.jsonl*")):
        raise InputError(f"workdir {str(directory)!r} holds records of unknown work: choose another directory.")
    return None


def _mark(directory: pathlib.Path, kind: str) -> None:
    present = kind_of(directory)
    if present is None and not create(directory / MARK, json.dumps({"kind": kind}) + "\n"):
        present = kind_of(directory)  # another process was faster
    if present not in (None, kind):
        raise InputError(
            f"workdir {str(directory)!r} holds {_NAMES[present]}, not {_NAMES[kind]}: choose another directory."
        )
    if present == kind:  # a directory of an earlier version
        create(directory / MARK, json.dumps({"kind": kind}) + "\n")


def _is_search(sweep: pathlib.Path) -> bool:
    """Whether an earlier version's ``sweep.json`` is that of a search that has not ended."""
    try:
        return bool(json.loads(sweep.read_text(encoding="utf-8"))["figure"] == "tune")
    except (ValueError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _opening(directory: pathlib.Path) -> Iterator[None]:
    """Errors of the first writes: most are the user's choice of directory, not a failure."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE):
            raise RunStopped(f"workdir {str(directory)!r} cannot be written to ({reason}): make room.") from error
        raise InputError(f"workdir {str(directory)!r} cannot be written to ({reason}): choose another.") from error


@contextlib.contextmanager
def writing_to(directory: pathlib.Path) -> Iterator[None]:
    """Turns write errors of any library into one sentence.

    Raises:
      RunStopped: the disk is full, read-only or unreachable.
    """
    try:
        yield
    except (InputError, RunStopped):
        raise
    except Exception as error:
        reason = _write_failure(error)
        if reason is None:
            raise
        raise RunStopped(
            f"workdir {str(directory)!r} cannot be written any more ({reason}): make room or make it writable, "
            "and rerun the command, which resumes from the last checkpoint."
        ) from error


_FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_WRITE_ERRORS = (*_FULL_OR_READ_ONLY, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM)


def _write_failure(error: BaseException | None) -> str | None:
    """The system's message, if ``error`` or one of its causes is a failed write."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _WRITE_ERRORS:
            return error.strerror or os.strerror(error.errno)
        # Orbax's storage library reports the message without the number.
        for message in map(os.strerror, _FULL_OR_READ_ONLY):
            if message in str(error):
                return message
        error = error.__cause__ or error.__context__
    return None
