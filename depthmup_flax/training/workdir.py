"""A run's work directory: that it is writable, locked by one process, and holds this run and no other."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import shutil
from collections.abc import Iterator

from ml_collections import ConfigDict

from depthmup_flax.errors import InputError, RunStopped
from depthmup_flax.training.config import listed, run_differences, to_json
from depthmup_flax.types import Json


def make_writable(directory: pathlib.Path) -> None:
    """Creates the directory if absent.

    Raises:
      InputError: it cannot be created or written to.
    """
    probe = directory / ".write_test"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _not_writable(directory, error) from error


def _not_writable(directory: pathlib.Path, error: OSError) -> InputError:
    return InputError(f"workdir {str(directory)!r} cannot be written to ({error.strerror}): choose another.")


def prepare_workdir(directory: pathlib.Path, config: ConfigDict, *, overwrite: bool) -> None:
    """Creates the directory, or checks that the one there belongs to the run of ``config``.

    Raises:
      InputError: it is not writable, or its ``config.json`` differs from ``config``; the sentence lists the fields.
    """
    make_writable(directory)
    if overwrite:
        with only_run_in(directory):
            _delete_run(directory)
    stored = directory / "config.json"
    if stored.exists():
        differing = run_differences(read_json(stored), json.loads(to_json(config)))
        if differing:
            raise InputError(
                f"workdir {str(directory)!r} holds a run with another config ({listed(differing)}): "
                "choose another directory, or pass --overwrite to delete that run."
            )
    checkpoints = directory / "checkpoints"
    if checkpoints.exists() and not checkpoints.is_dir():
        raise InputError(f"{str(checkpoints)!r} is a file: remove it, because checkpoints go there.")


@contextlib.contextmanager
def only_run_in(directory: pathlib.Path, lock: str = ".lock") -> Iterator[None]:
    """Holds a lock file, which the system releases when the process ends.

    Raises:
      InputError: another process holds the lock, or the directory is not writable.
    """
    try:
        opened = (directory / lock).open("a")
    except OSError as error:
        raise _not_writable(directory, error) from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"workdir {str(directory)!r} is in use by another run: wait for it, or choose another directory."
            ) from error
        except OSError:  # a file system without locks
            pass
        yield


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


def read_json(path: pathlib.Path) -> Json:
    """Reads a JSON object that a run has written.

    Raises:
      InputError: the file is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("no object")
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): delete it, or pass --overwrite to restart the run.") from error
    return content


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


def _delete_run(directory: pathlib.Path) -> None:
    """Deletes the files of a run, and no others."""
    if (directory / "checkpoints").is_dir():
        shutil.rmtree(directory / "checkpoints")
    for events in directory.glob("events.out.tfevents.*"):
        events.unlink()
    # config.json protects the other files, so it is deleted last.
    for name in ("result.json", "sample.txt", "metrics.jsonl", "params.txt", "config.json"):
        (directory / name).unlink(missing_ok=True)
