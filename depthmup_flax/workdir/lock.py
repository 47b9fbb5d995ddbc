"""A lock file that one process holds at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import pathlib
from collections.abc import Iterator

from depthmup_flax.errors import Busy

WAIT_S = 60.0


@dataclasses.dataclass(frozen=True)
class Lock:
    """A lock that this process holds."""

    path: pathlib.Path

    def check(self) -> None:
        """Raises `RunStopped` if the lock is lost."""


@contextlib.contextmanager
def held(path: pathlib.Path, wait_s: float = WAIT_S) -> Iterator[Lock]:
    """Holds a lock file, which the system releases when the process ends.

    Raises:
      Busy: another process holds the lock.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(
                f"workdir {str(path.parent)!r} is in use by another run: wait for it, or choose another directory."
            ) from error
        except OSError:  # a file system without locks
            pass
        yield Lock(path)
