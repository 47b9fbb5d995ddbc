"""A run's directory: that it can be written, is used once at a time, and holds this run and no other."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache
from ml_collections import ConfigDict

from depthmup_flax.errors import InputError, RunStopped
from depthmup_flax.training import config as configs


def make_writable(directory: pathlib.Path) -> None:
    """Creates the directory; InputError if it cannot be, or cannot be written to."""
    probe = directory / ".write_test"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"workdir {str(directory)!r} cannot be written to ({error.strerror}): choose another."
        ) from error


def prepare_workdir(directory: pathlib.Path, config: ConfigDict, *, overwrite: bool) -> pathlib.Path:
    """Creates the directory and makes sure that it can be written and holds no other run.

    Raises:
      InputError: it cannot be written, or its ``config.json`` differs from ``config`` (says in what).
    """
    make_writable(directory)
    if overwrite:
        with only_run_in(directory):
            _delete_run(directory)
    stored = directory / "config.json"
    if stored.exists():
        ours = json.loads(configs.to_json(config))
        found = configs.run_differences(read_json(stored), ours)
        if found:
            raise InputError(
                f"workdir {str(directory)!r} holds a run with another config ({configs.listed(found)}): "
                "choose another directory, or pass --overwrite to delete that run."
            )
    checkpoints = directory / "checkpoints"
    if checkpoints.exists() and not checkpoints.is_dir():
        raise InputError(f"{str(checkpoints)!r} is a file, where checkpoints are to be: remove it.")
    return directory


@contextlib.contextmanager
def only_run_in(directory: pathlib.Path, lock: str = ".lock") -> Iterator[None]:
    """Holds a lock that the system releases with the process, however it ends; InputError if another process has it."""
    try:
        opened = (directory / lock).open("a")
    except OSError as error:
        raise InputError(
            f"workdir {str(directory)!r} cannot be written to ({error.strerror}): choose another."
        ) from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"workdir {str(directory)!r} is in use by another run: wait or choose another.") from error
        except OSError:  # a file system without locks
            pass
        yield


@contextlib.contextmanager
def keeping_compiled(directory: pathlib.Path) -> Iterator[None]:
    """Programs compiled here are written to ``directory/compiled``, and read from there by the next start.

    Without effect where JAX keeps them already (``JAX_COMPILATION_CACHE_DIR``). A program that is read is the one that
    was written, so results do not change.
    """
    settings = {
        "jax_compilation_cache_dir": str(directory.absolute() / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,  # many small programs are a start, too
    }
    before = {name: getattr(jax.config, name) for name in settings}
    if before["jax_compilation_cache_dir"]:
        yield
        return
    _set(settings)
    try:
        yield
    finally:
        _set(before)


def _set(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # which has looked at them before


@contextlib.contextmanager
def writing_to(directory: pathlib.Path) -> Iterator[None]:
    """Turns what the system says when ``directory`` cannot be written any more into one sentence.

    Raises:
      RunStopped: the disk is full, read-only, or does not answer.
    """
    try:
        yield
    except (InputError, RunStopped):
        raise
    except Exception as error:
        reason = _full_or_readonly(error)
        if reason is None:
            raise
        raise RunStopped(
            f"workdir {str(directory)!r} cannot be written any more ({reason}): make room or make it writable, and "
            "run the same command again, which goes on from the last checkpoint."
        ) from error


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """What a run has written; InputError if it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): delete it, or pass --overwrite to start anew.") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} is not what a run writes: delete it, or pass --overwrite to start anew.")
    return found


_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM)


def _full_or_readonly(error: BaseException | None) -> str | None:
    """The system's words, if ``error`` or what caused it is that a file could not be written."""
    words = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)]
    while error is not None:
        if isinstance(error, OSError) and error.errno in _WRITE_ERRORS:
            return error.strerror or os.strerror(error.errno)
        # Orbax's storage library gives the words alone.
        for word in words:
            if word in str(error):
                return word
        error = error.__cause__ or error.__context__
    return None


def _delete_run(directory: pathlib.Path) -> None:
    """Deletes what a run writes, and nothing else."""
    # config.json guards the rest, so it goes last.
    if (directory / "checkpoints").is_dir():
        shutil.rmtree(directory / "checkpoints")
    for events in directory.glob("events.out.tfevents.*"):
        events.unlink()
    for name in ("result.json", "sample.txt", "metrics.jsonl", "params.txt", "config.json"):
        (directory / name).unlink(missing_ok=True)
