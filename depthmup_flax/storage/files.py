"""Files of a work directory that stay complete when the process is killed: on a disk, or in a bucket (``gs://``).

A bucket replaces whole objects and cannot append: files that grow are kept in memory, or on this machine's disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import gzip
import importlib.util
import json
import logging
import os
import pathlib
import shutil
import types
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from depthmup_flax.util.errors import InputError, RunStopped, shown
from depthmup_flax.util.imports import installs
from depthmup_flax.util.types import Json

T = TypeVar("T")

log = logging.getLogger(__name__)

REMEDY = "rerun the command. It resumes from what was saved."
HALF_WRITTEN = ".tmp-"  # begins the names of files that are renamed when they are complete


def absolute(path: pathlib.Path) -> str:
    """A path that a file elsewhere may name."""
    return str(path if is_bucket(path) else path.absolute())


def is_bucket(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is in a bucket."""
    return os.fspath(path).startswith("gs://")


def as_path(text: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a work directory as typed: on a disk, with ``~`` expanded, or in a bucket; else `InputError`."""
    if not isinstance(text, (str, os.PathLike)) or not os.fspath(text):
        raise InputError(f"the work directory is {text!r}: use a path, such as 'runs/digits'.")
    typed = os.fspath(text)
    if is_bucket(typed):
        if importlib.util.find_spec("gcsfs") is None:
            raise InputError(f"workdir {typed!r} needs gcsfs, which is absent: {installs('buckets')}.")
        os.environ.setdefault("EPATH_USE_TF", "false")  # the same client whether or not TensorFlow is installed
        import fsspec
        from etils import epath

        for protocol in ("gs", "gcs"):  # listings must show what other processes have written
            fsspec.config.conf.setdefault(protocol, {}).setdefault("use_listings_cache", False)
        return cast(pathlib.Path, epath.Path(typed.rstrip("/")))
    if "://" in typed:
        raise InputError(f"workdir {typed!r} is not supported: use a local directory, or a path in gs://.")
    try:
        typed.encode()  # libraries in C++ refuse names that are not UTF-8
        path = pathlib.Path(typed).expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.stat(os.path.join(path, "."))  # which needs the right to enter it, as what is in it does
        return path
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"workdir {typed!r} cannot be used ({_reason(error)}): write another path.") from error


def _reason(error: Exception) -> str:
    """What an error says, without the path, which a sentence names anyway."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file; readers and a crash see the old or the new one. Returns when it is on disk."""
    content = content.encode() if isinstance(content, str) else content
    if is_bucket(path):
        path.write_bytes(content)
        return
    temporary = path.with_name(f"{HALF_WRITTEN}{uuid.uuid4().hex[:16]}-{path.name}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def create(path: pathlib.Path, text: str) -> None:
    """Creates a complete file, unless it exists."""
    if not path.exists():
        write_atomically(path, text)


@contextlib.contextmanager
def reading(path: pathlib.Path | str, remedy: str) -> Iterator[None]:
    """Turns whatever is wrong with a file of ours into one sentence, an `InputError`, which ends with ``remedy``."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else _reason(error)
        raise InputError(f"{path} is not what this version writes ({reason}): {remedy}.") from error


def read_json(path: pathlib.Path, remedy: str) -> Json:
    """Reads a JSON object; see `reading`."""
    with reading(path, remedy):
        return json_object(path.read_text(encoding="utf-8"))


def json_object(text: str) -> Json:
    """The object that ``text`` is; `ValueError` or `RecursionError` for other texts."""
    if not isinstance(content := json.loads(text), dict):
        raise ValueError("it is no JSON object")
    return content


def from_fields(cls: type[T], fields: Json, path: pathlib.Path) -> T:
    """A dataclass from a file; `TypeError` that names a field which is missing, or of another type than annotated.

    Fields of a later version cause one warning.
    """
    annotations = _types_of(cast(Any, cls))
    if unknown := sorted(fields.keys() - annotations.keys()):
        _ignored(path, ", ".join(unknown))
    known = {name: value for name, value in fields.items() if name in annotations}
    for name, value in known.items():
        if not _is_of(value, annotations[name]):
            raise TypeError(f"its {name} is {shown(value)}, which is no {_name_of(annotations[name])}")
    return cls(**known)


@functools.cache
def _types_of(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _is_of(value: Any, annotation: Any) -> bool:
    """Whether a value of JSON, or a part of a dataclass, is of an annotated type; whole numbers are floats, too."""
    if annotation is Any:
        return True
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union):
        return any(_is_of(value, one) for one in arguments)
    if origin in (list, tuple, Sequence):
        return isinstance(value, (list, tuple)) and all(_is_of(part, arguments[0]) for part in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(_is_of(part, arguments[1]) for part in value.values())
    if annotation in (int, float):
        return isinstance(value, (int, annotation)) and not isinstance(value, bool)
    return isinstance(value, annotation)


def _name_of(annotation: Any) -> str:
    """An annotation in a sentence: ``int``, ``float | None``, ``list[float]``."""
    plain = isinstance(annotation, type) and get_origin(annotation) is None
    return annotation.__name__ if plain else str(annotation).replace("typing.", "")


@functools.cache
def _ignored(path: pathlib.Path, names: str) -> None:
    log.warning("%s: unknown fields are ignored: %s", path, names)


def read_lines(path: pathlib.Path) -> list[str]:
    """The lines of a text file, decompressed if it ends in ``.gz``; the last is empty if the file is complete."""
    with reading(path, "make it readable"):
        content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path} cannot be decompressed ({error}): restore the file.") from error
    return content.decode("utf-8", errors="replace").split("\n")


def delete_tree(directory: pathlib.Path) -> None:
    """Deletes a directory and its contents, if it exists; of a link to a directory, the link alone."""
    if is_bucket(directory):
        if directory.exists():
            directory.rmtree()  # type: ignore[attr-defined]
    elif directory.is_symlink():
        directory.unlink()
    else:
        while directory.is_dir():  # Orbax deletes what a kill left in a thread that it does not join
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(directory)


class JsonLines:
    """An append-only file with one JSON object per line; in a bucket each `write` replaces the whole object.

    Opening removes a last line without its newline, whose writer was killed. A compressed file is refused: a new file
    beside it would repeat its work.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        if is_bucket(path):
            self._text = path.read_text() if path.exists() else ""
            return
        compressed = path.with_name(path.name + ".gz")
        if compressed.exists():
            raise InputError(f"{compressed} is compressed: to resume, run gunzip {compressed} first.")
        content = path.read_bytes() if path.exists() else b""
        complete = content.rfind(b"\n") + 1
        if complete != len(content):
            os.truncate(path, complete)
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: Iterable[Any]) -> None:
        """Appends a line per value; returns when they are on disk."""
        text = "".join(json.dumps(value) + "\n" for value in values)
        if is_bucket(self._path):
            self._text += text
            self._path.write_text(self._text)
        else:
            self._file.write(text)
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        if not is_bucket(self._path):
            self._file.close()


@contextlib.contextmanager
def writing_to(directory: pathlib.Path) -> Iterator[None]:
    """Turns errors of any library that writes to ``directory`` into one sentence, a `RunStopped`."""
    try:
        yield
    except (InputError, RunStopped):
        raise
    except Exception as error:
        if (reason := storage_failure(error)) is None:
            raise
        remedy = f"make room, make it writable or reachable, then {REMEDY}"
        raise RunStopped(f"workdir {str(directory)!r} cannot be written any more ({reason}): {remedy}") from error


_FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_WRITE_ERRORS = (*_FULL_OR_READ_ONLY, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM)
_REMOTE = {"aiohttp", "fsspec", "gcsfs", "google", "requests", "urllib3"}  # whose errors come from a bucket


def storage_failure(error: BaseException) -> str | None:
    """The message of ``error`` or one of its causes if it is about a disk or a bucket."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _WRITE_ERRORS:
            return os.strerror(cause.errno)
        for message in map(os.strerror, _FULL_OR_READ_ONLY):  # Orbax's storage library gives the message alone
            if message in str(cause):
                return message
        if {parent.__module__.partition(".")[0] for parent in type(cause).__mro__} & _REMOTE:
            return str(cause).strip().partition("\n")[0] or type(cause).__name__
        cause = cause.__cause__ or cause.__context__
    return None
