"""Work directories in buckets: ``gs://bucket/run``, ``s3://bucket/run``.

A bucket writes, replaces, or creates if absent whole objects, each in one step. It cannot append and has no file locks.
Files that grow are therefore kept in `Scratch`, or written as one object per part.
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

from depthmup_flax.storage.workdir.seal import sealed
from depthmup_flax.util.errors import InputError, RunStopped

_PACKAGES = {"gs": "gcsfs", "s3": "s3fs"}  # file systems of fsspec
_EXTRA = 'pip install "depthmup-flax[buckets]"'
# Packages whose errors come from a bucket.
_REMOTE = {"aiohttp", "botocore", "fsspec", "gcsfs", "google", "requests", "s3fs", "urllib3"}
# Codes in the ValueErrors of TensorStore.
_TENSORSTORE = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED")

UPLOAD_EVERY_S = 60.0


def is_bucket(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is in a bucket."""
    return os.fspath(path).startswith(tuple(f"{scheme}://" for scheme in _PACKAGES))


def bucket_path(text: str) -> pathlib.Path:
    """The path of a directory in a bucket, with the methods of `pathlib.Path` that read, list and delete.

    Raises:
      InputError: a name that no bucket can have, or its package is not installed.
    """
    scheme, _, name = text.partition("://")
    bucket, *folders = name.rstrip("/").split("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", bucket):
        raise InputError(f"workdir is {text!r}: a bucket's name has 3 or more lowercase letters, digits, - . and _.")
    if any(folder in ("", ".", "..") or set(folder) & set("#?*[]\n\r") for folder in folders):
        raise InputError(f"workdir is {text!r}: names in a bucket must not be empty, '.' or '..', or contain #?*[].")
    if importlib.util.find_spec(_PACKAGES[scheme]) is None:
        raise InputError(f"workdir {text!r} needs {_PACKAGES[scheme]}, which is not installed. Run {_EXTRA}.")
    # Use the same client whether or not TensorFlow is installed.
    os.environ.setdefault("EPATH_USE_TF", "false")
    import fsspec
    from etils import epath

    for protocol in ("gs", "gcs", "s3"):  # listings must show what other processes have written
        fsspec.config.conf.setdefault(protocol, {}).setdefault("use_listings_cache", False)
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it also logs what it raises
    return cast(pathlib.Path, epath.Path(text.rstrip("/")))


def put(path: pathlib.Path, content: str | bytes) -> None:
    """Writes an object; readers see the old one or the new one."""
    file_system(path).pipe_file(str(path), _as_bytes(content))


def get(path: pathlib.Path) -> bytes:
    """The content of an object, by one request: ``path.read_bytes()`` makes several."""
    return bytes(file_system(path).cat_file(str(path)))


def put_new(path: pathlib.Path, content: str | bytes) -> bool:
    """Writes a new object; ``False``, without a change, if one with other content exists.

    Of simultaneous callers with different contents one gets ``True``. Equal content counts as success: a request that
    was repeated after a lost answer may find its own object.
    """
    try:
        file_system(path).pipe_file(str(path), _as_bytes(content), mode="create")  # generation 0; If-None-Match: *
        return True
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            return get(path) == _as_bytes(content)
        return False


def delete_tree(directory: pathlib.Path) -> None:
    """Deletes all objects in a directory, if any."""
    with contextlib.suppress(FileNotFoundError):
        file_system(directory).rm(str(directory), recursive=True)


def rename_tree(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies all objects to ``target``, then deletes them; after a crash one of both is complete."""
    file_system(source).mv(str(source), str(target), recursive=True)


def copy_command(path: pathlib.Path) -> str:
    """The command that copies an object to this machine."""
    return f"{'gcloud storage' if str(path).startswith('gs:') else 'aws s3'} cp {path} ."


def modified(path: pathlib.Path) -> float:
    """When an object was written, by the clock of the storage, in seconds."""
    return float(file_system(path).modified(str(path)).timestamp())


def file_system(path: pathlib.Path) -> Any:
    """The fsspec file system that the methods of a path in a bucket use."""
    return _file_system(str(path).partition("://")[0])


@functools.cache
def _file_system(scheme: str) -> Any:
    import fsspec

    # The arguments of etils.epath, so that fsspec returns the same client.
    return fsspec.filesystem("gcs", finalize_on_close=True) if scheme == "gs" else fsspec.filesystem(scheme)


def stopped(directory: pathlib.Path, error: Exception, *, absent: bool = True) -> RunStopped | None:
    """What to raise for an error during a run; ``None`` if it does not come from a bucket.

    ``absent``: whether a missing object counts; for damaged checkpoints it does not.
    """
    reason = _reason(error)
    if reason is None or (not absent and any(isinstance(cause, FileNotFoundError) for cause in causes(error))):
        return None
    return RunStopped(
        f"workdir {str(directory)!r} cannot be reached any more ({reason}): rerun the command later. It resumes from "
        "what was saved."
    )


@contextlib.contextmanager
def reachable(directories: Iterable[pathlib.Path]) -> Iterator[None]:
    """A context that turns errors of the connection to a bucket of ``directories``, which it reads, into one sentence.

    Raises:
      InputError: no credentials or no permission.
      RunStopped: the bucket cannot be reached.
    """
    try:
        yield
    except Exception as error:
        absent = any(isinstance(cause, FileNotFoundError) for cause in causes(error))
        for directory in () if absent else filter(is_bucket, directories):
            if sentence := opening_error(directory, error):
                raise sentence from error
        raise


def opening_error(directory: pathlib.Path, error: Exception) -> InputError | RunStopped | None:
    """What to raise for an error while opening or reading; ``None`` if it does not come from a bucket."""
    reason = _reason(error)
    if reason is None:
        return None
    workdir, bucket = f"workdir {str(directory)!r}", str(directory).split("/")[2]
    if any(_is_about_credentials(cause) for cause in causes(error)):
        return InputError(f"{workdir}: no valid credentials ({reason}). Log in, or set them.")
    if any(isinstance(cause, PermissionError) or str(cause).startswith("Forbidden") for cause in causes(error)):
        needed = f"Your account must be allowed to list, read, write and delete objects of the bucket {bucket!r}"
        return InputError(f"{workdir}: no permission ({reason}). {needed}.")
    if any(isinstance(cause, FileNotFoundError) for cause in causes(error)):
        return InputError(f"{workdir}: there is no bucket {bucket!r}. Create it, or name another.")
    return RunStopped(f"{workdir} cannot be reached ({reason}): rerun the command later.")


def _reason(error: BaseException) -> str | None:
    """The first line of a bucket's or connection's error; ``None`` for other errors."""
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
    """The error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


class Parts:
    """`files.JsonLines` in a bucket: each `write` makes a new object beside ``path``.

    ``records.jsonl`` becomes ``records.20261123T120000-1f2e3d4c-000001.jsonl``: when this writer started, a random
    number, and the part. Names sort in the order of writing.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._written = path, 0
        self._writer = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"

    def write(self, values: Iterable[Any]) -> None:
        """Writes a line per value; returns when the bucket has them."""
        text = "".join(sealed(json.dumps(value)) + "\n" for value in values)
        name = f"{self._path.stem}.{self._writer}-{self._written + 1:06d}{self._path.suffix}"
        put(self._path.with_name(name), text)
        self._written += 1

    def close(self) -> None:
        """Does nothing: every part is complete."""


class Scratch:
    """A local directory for files that grow or that libraries write; `upload` copies them to a bucket.

    It is the work directory itself if that is on a disk; then `upload` does nothing.

    Args:
      directory: the work directory.
      fetch: names of files to copy from the bucket first, if they exist.
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
        """Copies files that have changed since the last call; each replaces the bucket's in one step."""
        if not self._remote:
            return
        for path in sorted(self.local.iterdir()):
            state = self._state(path.name)
            if path.is_file() and self._uploaded.get(path.name) != state:
                put(self._directory / path.name, path.read_bytes())
                self._uploaded[path.name] = state
        self._last = time.monotonic()

    def upload_if_due(self) -> None:
        """Uploads if the last upload was `UPLOAD_EVERY_S` ago."""
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
