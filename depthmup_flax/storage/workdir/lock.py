"""A lock that one process holds at a time, on one host or several.

The lock file names its holder. Creating it is exclusive (a hard link), and so is replacing it when it is free:

* On the holder's machine the kernel's lock (``flock``), which ends with the process, says whether it is free.
* Another machine may not see ``flock``, or see it after the holder's machine has failed. There a heartbeat decides: the
  holder sets the file's modification time every `BEAT_S` seconds, and the lock is free when a waiting process has seen
  no change for `EXPIRY_S`. Clocks of two machines are not compared.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import errno
import fcntl
import json
import logging
import os
import pathlib
import platform
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

from depthmup_flax.storage.workdir.files import link_exclusively, temporary_name
from depthmup_flax.util.errors import Busy, RunStopped

T = TypeVar("T")

log = logging.getLogger(__name__)

BEAT_S = 10.0
EXPIRY_S = 45.0  # several beats, so that a holder that is suspended for less keeps its lock
WAIT_S = 60.0  # longer than EXPIRY_S, so that a start takes over the lock of a failed machine
_POLL_S = 0.25
_CLOCK = getattr(time, "CLOCKBOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """A clock that never jumps and continues while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


@dataclasses.dataclass(frozen=True)
class Holder:
    """The content of a lock file."""

    held: bool
    host: str
    pid: int
    boot: str  # of the running kernel; processes with the same value see each other's ``flock``
    kernel_lock: bool  # whether the file system has ``flock``
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def to_json(self) -> bytes:
        """One line; its length does not depend on ``held``, because one overwrites the other."""
        return json.dumps(dataclasses.asdict(self)).replace("true,", "true ,", 1).encode() + b"\n"


class Heartbeat(abc.ABC):
    """A lock that this process holds or has lost; a thread calls `_beat` every `BEAT_S` seconds."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._confirmed_s, self._lost = now_s(), ""
        self._beating, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._beat_until_ended, name=f"heartbeat {path}", daemon=True)
        self._thread.start()

    def check(self, *, now: bool = False) -> None:
        """Raises `RunStopped` if the lock is lost; reads its file ``now``, or if this process was suspended.

        It is lost if the directory was deleted, renamed or taken over by another process, or cannot be reached.
        """
        if not self._lost and (now or self._is_late()):
            self._beat()
        if self._lost:
            raise RunStopped(f"workdir {str(self.path.parent)!r} {self._lost}")

    def release(self) -> None:
        """Ends the heartbeat and frees the lock, if it is not lost."""
        self._ended.set()
        self._thread.join()
        self._free()

    @abc.abstractmethod
    def _beat(self) -> None:
        """Renews the lock and sets ``_confirmed_s``, or sets ``_lost`` to the reason."""

    @abc.abstractmethod
    def _free(self) -> None:
        """Lets other processes take the lock."""

    def _beat_until_ended(self) -> None:
        while not self._ended.wait(BEAT_S) and not self._lost:
            self._beat()

    def _is_late(self) -> bool:
        """Whether this process was suspended for so long that the lock may have expired."""
        return now_s() - self._confirmed_s > EXPIRY_S - BEAT_S


class Lock(Heartbeat):
    """A lock file that this process holds; made by `held`."""

    def __init__(self, path: pathlib.Path, file: int, holder: Holder) -> None:
        self._file, self._holder = file, holder
        super().__init__(path)

    def _free(self) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._file, dataclasses.replace(self._holder, held=False).to_json(), 0)
        os.close(self._file)

    def _beat(self) -> None:
        """Sets the file's time and checks that the path still leads to this file."""
        with self._beating:
            started, late = now_s(), self._is_late()
            try:
                _touch(self._file)
                found = _read(self.path, probe=False)
                if late or found is None:  # another process may be taking over, or a file server was wrong once
                    time.sleep(2 * _POLL_S)
                    found = _read(self.path, probe=False)
            except OSError as error:
                if started - self._confirmed_s > EXPIRY_S:  # another machine may have taken over
                    self._lost = f"cannot be reached any more ({error.strerror}): {REMEDY}"
                return
            if found is None:
                self._lost = DELETED
            elif found.holder is None or found.holder.token != self._holder.token:
                other = found.holder or "another process"
                self._lost = f"was taken over by {other}: stop that process, or wait for it."
            else:
                self._confirmed_s = started


REMEDY = "rerun the command. It resumes from what was saved."
DELETED = f"was deleted or renamed while it was in use: restore it, then {REMEDY}"


@contextlib.contextmanager
def held(path: pathlib.Path, wait_s: float | None = None) -> Iterator[Lock]:
    """Holds the lock ``path``; waits at most ``wait_s`` seconds, by default `WAIT_S`.

    Raises:
      Busy: another process still holds it.
      OSError: the directory cannot be written to.
    """
    watch = _Watch()

    def attempt() -> tuple[tuple[int, Holder] | None, str | None]:
        own = _take(path, watch)
        return own, None if own else watch.busy(path)

    lock = Lock(path, *taken_in_time(path, wait_s, attempt, _POLL_S))
    try:
        yield lock
    finally:
        lock.release()


def taken_in_time(
    path: pathlib.Path, wait_s: float | None, attempt: Callable[[], tuple[T | None, str | None]], poll_s: float
) -> T:
    """Repeats ``attempt``, every ``poll_s`` seconds at most, until it returns a lock; else it describes the holder.

    Logs the holder once. `Busy` after ``wait_s`` seconds.
    """
    wait_s = WAIT_S if wait_s is None else wait_s
    deadline, said = now_s() + wait_s, False
    while True:
        taken, other = attempt()
        if taken is not None:
            return taken
        left = deadline - now_s()
        if left <= 0:
            text = f"workdir {str(path.parent)!r} is in use by {other or 'another process'}"
            raise Busy(f"{text}, still after {wait_s:g} s: rerun the command later, or choose another directory.")
        if other and not said:
            said = True
            log.warning("workdir %s is in use by %s: waiting for at most %g s", path.parent, other, wait_s)
        time.sleep(min(left, poll_s * random.random()))


def locks_in(directory: pathlib.Path) -> list[pathlib.Path]:
    """The lock files of a directory."""
    return list(directory.glob(".lock*"))


def busy(path: pathlib.Path) -> str | None:
    """Describes the process that holds a lock; ``None`` if it is free."""
    return _Watch().busy(path)


@dataclasses.dataclass(frozen=True)
class _Found:
    """A lock file at one moment."""

    holder: Holder | None  # None: no content, for example after a power cut
    beat: int  # its modification time
    locked: bool | None  # whether a process holds ``flock``; None: the file system has none


class _Watch:
    """Tells which locks are free; remembers since when each file is unchanged."""

    def __init__(self) -> None:
        self._seen: dict[pathlib.Path, tuple[Holder | None, int, float]] = {}  # holder, beat, and since when

    def look(self, path: pathlib.Path) -> tuple[_Found | None, bool]:
        """The lock file, and whether a process may take the lock."""
        found = _read(path)
        if found is None:
            return None, True
        holder, previous = found.holder, self._seen.get(path)
        if previous is None or previous[:2] != (holder, found.beat):
            previous = self._seen[path] = (holder, found.beat, now_s())
        if holder is not None and not holder.held:
            return found, True
        if holder is not None and holder.boot == BOOT and holder.kernel_lock:
            return found, found.locked is False
        return found, now_s() - previous[2] > EXPIRY_S

    def busy(self, path: pathlib.Path) -> str | None:
        """Describes the process that holds the lock."""
        found, free = self.look(path)
        return None if found is None or free else str(found.holder or "another process")


def _take(path: pathlib.Path, watch: _Watch) -> tuple[int, Holder] | None:
    """Creates the lock file, or replaces a free one; returns the open file, ``None`` if another process holds it.

    Of the processes that find the same lock free, the one that creates a file named after the last holder replaces it.
    That file is itself a lock: if its creator dies, it is replaced in the same way.
    """
    found, free = watch.look(path)
    if found is None:
        return _create(path)
    if not free:
        return None
    guard = path.with_name(f"{path.name}.{found.holder.token if found.holder else 'unknown'}")
    own = _take(guard, watch)
    if own is None:
        return None
    if _read(path) == found:  # nobody has replaced it, and its holder has not resumed
        os.replace(guard, path)
        return own
    guard.unlink()
    os.close(own[0])
    return None


def _create(path: pathlib.Path) -> tuple[int, Holder] | None:
    """Creates a lock file that this process holds; ``None`` if it exists."""
    own = temporary_name(path)
    file = os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        holder = _write_holder(file)
        if link_exclusively(own, path):
            return file, holder
    except BaseException:
        os.close(file)
        raise
    finally:
        own.unlink(missing_ok=True)
    os.close(file)
    return None


def _write_holder(file: int) -> Holder:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kernel_lock = True
    except OSError:  # a file system without locks
        kernel_lock = False
    holder = Holder(True, platform.node(), os.getpid(), BOOT, kernel_lock, uuid.uuid4().hex[:16])
    os.pwrite(file, holder.to_json(), 0)
    return holder


def _read(path: pathlib.Path, *, probe: bool = True) -> _Found | None:
    """The lock file; ``None`` if there is none."""
    try:
        with path.open("rb") as file:  # opening asks a file server again; stat may not
            locked = _is_locked(file.fileno()) if probe else None
            content, beat = file.read(), os.fstat(file.fileno()).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:  # replaced on the server
            return None
        raise
    try:
        return _Found(Holder(**json.loads(content)), beat, locked)
    except (ValueError, TypeError):
        return _Found(None, beat, locked)


def _is_locked(file: int) -> bool | None:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in (errno.EAGAIN, errno.EACCES) else None
    return False


def _touch(file: int) -> None:
    try:
        os.utime(file)
    except OSError as error:
        if error.errno != errno.ESTALE:  # deleted on the server; the next read of the path shows it
            raise


def _boot() -> str:
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{platform.node()} {uuid.getnode()}"


BOOT = _boot()
