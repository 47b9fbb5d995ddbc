"""Files that stay complete when the process is killed."""

import gzip
import json
import os
import pathlib
import uuid
import zlib
from collections.abc import Iterable
from typing import Any

from depthmup_flax.errors import InputError
from depthmup_flax.types import Json


def read_json(path: pathlib.Path, remedy: str) -> Json:
    """Reads a JSON object.

    Raises:
      InputError: the file is damaged; the sentence ends with ``remedy``.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("no object")
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): {remedy}.") from error
    return content


def create(path: pathlib.Path, text: str) -> bool:
    """Writes a new file, complete from its first moment; ``False``, and no change, if there is one already.

    Of processes that call it at the same time, on one host or several, one gets ``True``.
    """
    temporary = _temporary(path, text)
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    finally:
        temporary.unlink()


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Writes ``text`` so that readers, and a crash, see either the old file or the new one."""
    os.replace(_temporary(path, text), path)


def _temporary(path: pathlib.Path, text: str) -> pathlib.Path:
    """A file beside ``path`` whose name no other process uses."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.write_text(text, encoding="utf-8")
    return temporary


def read_lines(path: pathlib.Path) -> list[str]:
    """The lines of a text file, decompressed if its name ends in ``.gz``; the last is empty if the file is complete."""
    content = path.read_bytes()
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


class JsonLines:
    """An append-only file with one JSON value per line.

    Opening repairs the end of a file whose writer was killed: a torn last line is removed, and a complete last line
    without its newline gets one. It refuses a compressed file: appending to a new one would repeat all of its work.
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
        self._file.writelines(json.dumps(value) + "\n" for value in values)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
