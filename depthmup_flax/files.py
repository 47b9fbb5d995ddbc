"""Files that are complete or absent, whenever a process ends."""

from __future__ import annotations

import os
import pathlib


def write_atomically(path: pathlib.Path, text: str) -> None:
    """A reader, or a crash, sees the old file or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
