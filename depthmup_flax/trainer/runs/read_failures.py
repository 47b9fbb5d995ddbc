"""Why a checkpoint cannot be read: its content is wrong, or the system does not give it."""

from __future__ import annotations

import errno
import pathlib
from collections.abc import Iterator

from depthmup_flax.storage.workdir import buckets

_LOST = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)  # a file of the checkpoint is gone, or something else is there
_MOST = 160  # characters of a reason
_BLOCK = 2**24


def reason(error: BaseException) -> str:
    """The first line of an error, without the settings that TensorStore adds."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    for settings in (" [tensorstore_spec", " See full TensorStore"):
        line = line.partition(settings)[0].rstrip(".")
    return line if len(line) <= _MOST else f"{line[:_MOST]}..."


def of_system(error: BaseException, folder: pathlib.Path) -> str | None:
    """Why the system does not give what ``folder`` holds, if that is why reading it raised ``error``; else ``None``.

    Libraries wrap such errors in others, so this reads all files again, which shows whether they can be read.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "RESOURCE_EXHAUSTED" in str(cause):
            return "there is not enough memory"
        cause = cause.__cause__ or cause.__context__
    if buckets.is_bucket(folder):
        return None  # see `depthmup_flax.storage.workdir.buckets.stopped`
    try:
        for path in _files(folder):
            with path.open("rb") as file:
                while file.read(_BLOCK):
                    pass
    except OSError as found:
        if found.errno not in _LOST:
            return f"{found.strerror}: {found.filename}"
    return None


def _files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    for path in folder.iterdir():  # unlike rglob, raises for a folder that cannot be listed
        if path.is_dir():
            yield from _files(path)
        else:
            yield path
