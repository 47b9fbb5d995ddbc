"""Files that stay complete when the process is killed."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Writes ``text`` so that readers, and a crash, see either the old file or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def is_json(text: str | bytes) -> bool:
    """Whether ``text`` is valid JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class JsonLines:
    """An append-only file with one JSON value per line.

    Opening repairs the end of a file whose writer was killed: a torn last line is removed, and a complete last line
    without its newline gets one.
    """

    def __init__(self, path: pathlib.Path) -> None:
        if path.exists():
            content = path.read_bytes()
            complete = content.rfind(b"\n") + 1
            if complete != len(content):
                with path.open("r+b") as file:
                    if is_json(content[complete:]):
                        file.seek(0, os.SEEK_END)
                        file.write(b"\n")
                    else:
                        file.truncate(complete)
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: Iterable[Any]) -> None:
        """Appends a line per value; returns when they are on disk."""
        self._file.writelines(json.dumps(value) + "\n" for value in values)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
