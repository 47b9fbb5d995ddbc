"""Work directories in buckets: ``gs://bucket/run``, ``s3://bucket/run``.

A bucket holds whole objects: one can be written, replaced, or created if absent, each time in one step. It cannot
append and has no file locks. What appends on a disk is therefore written to `Scratch`, or as one object per part.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import logging
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

from depthmup_flax.util.errors import InputError, RunStopped

_PACKAGES = {"gs": "gcsfs", "s3": "s3fs"}  # file systems of fsspec
_EXTRA = "pip install 'depthmup-flax[buckets]'"
# Packages whose errors mean that the bucket did not do what it was asked.
_REMOTE = {"aiohttp", "botocore", "fsspec", "gcsfs", "google", "requests", "s3fs", "urllib3"}
# What TensorStore says, for which it raises ValueError.
_TENSORSTORE = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED")

UPLOAD_EVERY_S = 60.0


def is_bucket(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is in a bucket."""
    return os.fspath(path).startswith(tuple(f"{scheme}://" for scheme in _PACKAGES))


def bucket_path(text: str) -> pathlib.Path:
    """The path of a directory in a bucket; it has the methods of `pathlib.Path` that read, list and delete.

    Raises:
      InputError: the name is not one that a bucket can have, or the package that talks to it is absent.
    """
    scheme, _, name = text.partition("://")
    bucket, *folders = name.rstrip("/").split("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", bucket):
        raise InputError(f"{text!r} names the bucket {bucket!r}: use 3 or more lowercase letters, digits, - . and _.")
    if any(folder in ("", ".", "..") or set(folder) & set("#?*[]\n\r") for folder in folders):
        raise InputError(f"{text!r} cannot be a directory in a bucket: leave out empty names, '.', '..' and #?*[].")
    if importlib.util.find_spec(_PACKAGES[scheme]) is None:
        raise InputError(f"{text!r} needs the package {_PACKAGES[scheme]}, which is not installed: {_EXTRA}.")
    # One client for everybody, whether or not TensorFlow, which has its own, is installed.
    os.environ.setdefault("EPATH_USE_TF", "false")
    import fsspec
    from etils import epath

    for protocol in ("gs", "gcs", "s3"):  # listings must show what other processes have written
        fsspec.config.conf.setdefault(protocol, {}).setdefault("use_listings_cache", False)
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs a traceback for what it then raises
    return cast(pathlib.Path, epath.Path(text.rstrip("/")))


def put(path: pathlib.Path, content: str | bytes) -> None:
    """Writes an object; readers see the old one or the new one."""
    file_system(path).pipe_file(str(path), _as_bytes(content))


def get(path: pathlib.Path) -> bytes:
    """The content of an object, by one request: ``path.read_bytes()`` makes several."""
    return bytes(file_system(path).cat_file(str(path)))


def put_new(path: pathlib.Path, content: str | bytes) -> bool:
    """Writes a new object; ``False``, and no change, if there is one of other content.

    Of processes that call it at the same time with different contents, one gets ``True``. (A request that was repeated
    after a lost answer may find its own object: equal content counts as success.)
    """
    try:
        file_system(path).pipe_file(str(path), _as_bytes(content), mode="create")  # generation 0; If-None-Match: *
        return True
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            return get(path) == _as_bytes(content)
        return False


def delete_tree(directory: pathlib.Path) -> None:
    """Deletes all objects in a directory; none is fine."""
    with contextlib.suppress(FileNotFoundError):
        file_system(directory).rm(str(directory), recursive=True)


def rename_tree(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies all objects to ``target``, then deletes them; a crash leaves some of both, and all of one."""
    file_system(source).mv(str(source), str(target), recursive=True)


def copy_command(path: pathlib.Path) -> str:
    """The command that copies an object here."""
    return f"{'gcloud storage' if str(path).startswith('gs:') else 'aws s3'} cp {path} ."


def modified(path: pathlib.Path) -> float:
    """When an object was written, by the clock of the storage, in seconds."""
    return float(file_system(path).modified(str(path)).timestamp())


def file_system(path: pathlib.Path) -> Any:
    """The fsspec file system of a path in a bucket, the same that its methods use."""
    return _file_system(str(path).partition("://")[0])


@functools.cache
def _file_system(scheme: str) -> Any:
    import fsspec

    # The arguments of etils.epath, so that fsspec returns the same client.
    return fsspec.filesystem("gcs", finalize_on_close=True) if scheme == "gs" else fsspec.filesystem(scheme)


def stopped(directory: pathlib.Path, error: Exception, *, absent: bool = True) -> RunStopped | None:
    """What to raise for an error in mid-run; ``None`` if it does not come from a bucket.

    ``absent``: whether an object that is not there counts, as it does not for damaged checkpoints.
    """
    reason = _reason(error)
    if reason is None or (not absent and any(isinstance(cause, FileNotFoundError) for cause in causes(error))):
        return None
    return RunStopped(
        f"workdir {str(directory)!r} cannot be reached any more ({reason}): rerun the command when it can, which "
        "resumes from what was saved."
    )


@contextlib.contextmanager
def reachable(directories: Iterable[pathlib.Path]) -> Iterator[None]:
    """Within, a bucket that cannot be reached is one sentence.

    Raises:
      RunStopped: one of ``directories`` is in a bucket, and the connection is lost.
    """
    try:
        yield
    except Exception as error:
        for directory in filter(is_bucket, directories):
            if sentence := stopped(directory, error, absent=False):
                raise sentence from error
        raise


def opening_error(directory: pathlib.Path, error: Exception) -> InputError | RunStopped | None:
    """What to raise for an error of the first requests; ``None`` if it does not come from a bucket."""
    reason = _reason(error)
    if reason is None:
        return None
    workdir, bucket = f"workdir {str(directory)!r}", str(directory).split("/")[2]
    if any(_is_about_credentials(cause) for cause in causes(error)):
        return InputError(f"{workdir}: there are no valid credentials ({reason}). Log in, or set them.")
    if any(isinstance(cause, PermissionError) or str(cause).startswith("Forbidden") for cause in causes(error)):
        needed = f"your account must be able to list, read, write and delete objects of the bucket {bucket!r}"
        return InputError(f"{workdir}: no permission ({reason}); {needed}.")
    if any(isinstance(cause, FileNotFoundError) for cause in causes(error)):
        return InputError(f"{workdir}: there is no bucket {bucket!r}. Create it, or name another.")
    return RunStopped(f"{workdir} cannot be reached ({reason}): rerun the command later.")


def _reason(error: BaseException) -> str | None:
    """The first line of what a bucket, or the connection to it, has answered; ``None`` for an error of other origin."""
    for cause in causes(error):
        packages, said = {parent.__module__.partition(".")[0] for parent in type(cause).__mro__}, str(cause)
        known = isinstance(cause, (ConnectionError, TimeoutError, FileNotFoundError, PermissionError))
        if known or packages & _REMOTE or said.startswith("Forbidden") or any(code in said for code in _TENSORSTORE):
            return next((line for line in said.splitlines() if line.strip()), type(cause).__name__)
    return None


def _is_about_credentials(error: BaseException) -> bool:
    kind, kinds = type(error), ("NoCredentialsError", "CredentialRetrievalError", "TokenRetrievalError")
    said = str(getattr(error, "code", ""))
    return said == "401" or kind.__module__.startswith("google.auth") or kind.__name__ in kinds


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


class Parts:
    """`files.JsonLines` in a bucket: each `write` makes a new object beside ``path``, which nobody changes.

    ``records.jsonl`` becomes ``records.20261123T120000-1f2e3d4c-000001.jsonl``: the time at which this writer started,
    a random number, and the part. Sorted by name, parts are in the order of writing.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._written = path, 0
        self._writer = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"

    def write(self, values: Iterable[Any]) -> None:
        """Writes a line per value; returns when the bucket has them."""
        text = "".join(json.dumps(value) + "\n" for value in values)
        name = f"{self._path.stem}.{self._writer}-{self._written + 1:06d}{self._path.suffix}"
        put(self._path.with_name(name), text)
        self._written += 1

    def close(self) -> None:
        """Does nothing: every part is complete."""


class Scratch:
    """A local directory for files that grow, or that libraries write; `upload` copies them to a bucket.

    For a work directory on a disk it is that directory, and `upload` does nothing.

    Args:
      directory: the work directory.
      fetch: names of files to copy from the bucket first, if they are there.
    """

    def __init__(self, directory: pathlib.Path, fetch: Iterable[str] = ()) -> None:
        self._directory, self._remote = directory, is_bucket(directory)
        self.local = pathlib.Path(tempfile.mkdtemp(prefix="depthmup-scratch-")) if self._remote else directory
        self._uploaded: dict[str, tuple[int, int]] = {}  # name -> size, time of the last change
        self._last = time.monotonic()
        for name in fetch if self._remote else ():
            if (directory / name).exists():
                (self.local / name).write_bytes((directory / name).read_bytes())
                self._uploaded[name] = self._state(name)

    def upload(self) -> None:
        """Copies the files that have changed since the last call; each replaces the bucket's in one step."""
        if not self._remote:
            return
        for path in sorted(self.local.iterdir()):
            state = self._state(path.name)
            if path.is_file() and self._uploaded.get(path.name) != state:
                put(self._directory / path.name, path.read_bytes())
                self._uploaded[path.name] = state
        self._last = time.monotonic()

    def upload_if_due(self) -> None:
        """Uploads if the last time is `UPLOAD_EVERY_S` ago."""
        if time.monotonic() - self._last >= UPLOAD_EVERY_S:
            self.upload()

    def close(self) -> None:
        """Uploads, and deletes the local copies."""
        try:
            self.upload()
        finally:
            if self._remote:
                shutil.rmtree(self.local, ignore_errors=True)

    def _state(self, name: str) -> tuple[int, int]:
        stat = (self.local / name).stat()
        return stat.st_size, stat.st_mtime_ns


def _as_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
