"""Files that are either complete or absent, whenever the process ends."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import zlib
from collections.abc import Iterable
from typing import Any

from depthmup_flax.errors import InputError


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Replaces a file: a reader, also after a crash, sees the old content or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def read_lines(path: pathlib.Path) -> list[str]:
    """The lines of a text file, decompressed if its name ends in ``.gz``; the last is empty if the file is whole.

    Raises:
      InputError: the compressed file is damaged.
    """
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path} cannot be decompressed ({error}): restore the file.") from error
    return content.decode("utf-8", errors="replace").split("\n")


class JsonLines:
    """A file of JSON values, one per line, to append to; a line is on disk when `write` returns.

    Opening the file removes a last line that a crash truncated, and completes one that lacks only its line end.

    Raises:
      InputError: the file was compressed. Appending would repeat all of its work.
    """

    def __init__(self, path: pathlib.Path) -> None:
        compressed = path.with_name(path.name + ".gz")
        if compressed.exists():
            raise InputError(f"{compressed} is compressed: to resume, run gunzip {compressed} first.")
        if path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole != len(content):
                with path.open("r+b") as file:
                    if _is_json(content[whole:]):
                        file.seek(0, os.SEEK_END)
                        file.write(b"\n")
                    else:
                        file.truncate(whole)
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: Iterable[Any]) -> None:
        """Appends values and waits until they are on disk."""
        self._file.writelines(json.dumps(value) + "\n" for value in values)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
