"""Files that stay complete when the process is killed."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import pathlib
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from depthmup_flax.storage.workdir import buckets
from depthmup_flax.storage.workdir.seal import sealed, unsealed
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Json


def read_json(path: pathlib.Path, remedy: str) -> Json:
    """Reads a JSON object; `InputError`, which ends with ``remedy``, if the file is damaged."""
    try:
        content = unsealed(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not what was written ({error}): {remedy}.") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object: {remedy}.")
    return content


T = TypeVar("T")
_TEMPORARY = ".tmp-"
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file; readers and a crash see the old or the new one. Returns when it is on disk."""
    if buckets.is_bucket(path):
        return buckets.put(path, content)
    with _temporary(path, content) as temporary:
        os.replace(temporary, path)
    _sync_directory(path.parent)


def create(path: pathlib.Path, text: str) -> bool:
    """Creates a complete file; ``False``, without a change, if it exists. Of simultaneous callers one gets ``True``."""
    if buckets.is_bucket(path):
        return buckets.put_new(path, text)
    with _temporary(path, text) as temporary:
        if not link_exclusively(temporary, path):
            return False
    _sync_directory(path.parent)
    return True


def modified_s(path: pathlib.Path) -> float:
    """When a file was last written, in seconds since the epoch, by its file system or bucket."""
    return float(getattr(path.stat(), "mtime" if buckets.is_bucket(path) else "st_mtime"))


VISIBLE_S = 2.0  # a file server shows changes within this time


def retried(function: Callable[[], T]) -> T:
    """The result of ``function``, repeated for `VISIBLE_S` while files appear or vanish on a file server."""
    deadline = time.monotonic() + VISIBLE_S
    while True:
        try:
            return function()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE, errno.EEXIST) or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def link_exclusively(source: pathlib.Path, target: pathlib.Path) -> bool:
    """Makes ``target`` a second name of the file ``source``; ``False``, without a change, if ``target`` exists."""
    try:
        os.link(source, target)
    except FileExistsError:
        # A file server answers so to a repeated request whose first answer was lost.
        return source.stat().st_nlink == 2
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if target.exists():
            return False
        # Of processes that rename within a second, the last wins.
        own = source.stat()
        os.rename(source, target)
        time.sleep(1.0)
        return os.path.samestat(own, target.stat())
    return True


def temporary_name(path: pathlib.Path) -> pathlib.Path:
    """A name beside ``path`` that no other process uses."""
    return path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex[:16]}-{path.name}")


def delete_leftovers(directory: pathlib.Path, age_s: float = 3600.0) -> None:
    """Deletes temporary files of killed writers: those older than ``age_s``."""
    for path in directory.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another process may delete it
            if time.time() - path.stat().st_mtime > age_s:
                path.unlink()


@contextlib.contextmanager
def _temporary(path: pathlib.Path, content: str | bytes) -> Iterator[pathlib.Path]:
    """A temporary file with ``content`` on disk, beside ``path``."""
    temporary = temporary_name(path)
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _sync_directory(directory: pathlib.Path) -> None:
    """Writes the names in a directory to disk, if the file system can."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(file)


def read_lines(path: pathlib.Path) -> list[str]:
    """The lines of a text file, decompressed if it ends in ``.gz``; the last is empty if the file is complete."""
    content = buckets.get(path) if buckets.is_bucket(path) else path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path} cannot be decompressed ({error}): restore the file.") from error
    return content.decode("utf-8", errors="replace").split("\n")


def is_json(text: str | bytes) -> bool:
    """Whether ``text`` is valid JSON."""
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def delete_tree(directory: pathlib.Path) -> None:
    """Deletes a directory and its contents, if it exists; of a link to a directory, the contents alone."""
    if buckets.is_bucket(directory):
        buckets.delete_tree(directory)
    elif directory.is_symlink() and directory.is_dir():
        for path in directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    elif directory.is_dir():
        shutil.rmtree(directory)


def rename_tree(source: pathlib.Path, target: pathlib.Path) -> None:
    """Renames a directory; in a bucket copies, then deletes it."""
    if buckets.is_bucket(source):
        buckets.rename_tree(source, target)
    else:
        os.replace(source, target)


def open_lines(path: pathlib.Path) -> JsonLines | buckets.Parts:
    """Opens a file of JSON lines for appending; in a bucket, parts beside it."""
    return buckets.Parts(path) if buckets.is_bucket(path) else JsonLines(path)


class JsonLines:
    """An append-only file with one JSON object per line, each with a checksum (`sealed`).

    Opening repairs the end of a file whose writer was killed: it removes a torn last line and completes one that lacks
    its newline. A compressed file is refused: a new file beside it would repeat its work.
    """

    def __init__(self, path: pathlib.Path) -> None:
        compressed = path.with_name(path.name + ".gz")
        if compressed.exists():
            raise InputError(f"{compressed} is compressed: to resume, run gunzip {compressed} first.")
        content = path.read_bytes() if path.exists() else b""
        complete = content.rfind(b"\n") + 1
        if is_json(content[complete:]):
            with path.open("ab") as file:
                file.write(b"\n")
        elif complete != len(content):
            os.truncate(path, complete)
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: Iterable[Any]) -> None:
        """Appends a line per value; returns when they are on disk."""
        self._file.writelines(sealed(json.dumps(value)) + "\n" for value in values)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
