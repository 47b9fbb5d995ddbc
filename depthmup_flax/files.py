"""Files that are complete or absent, whenever a process ends."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any


def write_atomically(path: pathlib.Path, text: str) -> None:
    """A reader, or a crash, sees the old file or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


class JsonLines:
    """A file of JSON, a line each, that is appended to; a line is on the disk when `write` returns.

    Opening cuts off a last line that a crash tore. A whole last line that only lacks its end gets one.
    """

    def __init__(self, path: pathlib.Path) -> None:
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
        """Appends, and waits for the disk."""
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
