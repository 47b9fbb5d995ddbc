"""A lock that one process holds at a time, on one host or several.

The lock file names its holder. Creating it is exclusive (a hard link), and so is replacing it when it is free. Whether
it is free is decided by two means:

* The kernel's lock (``flock``) on the file, which ends with the process, decides among processes of one machine.
* Another machine may not see that lock, or see it after the holder's machine is gone. There a heartbeat decides: the
  holder sets the file's modification time every `BEAT_S` seconds, and the lock is free when a process that waits for
  it has seen no change for `EXPIRY_S`. No clocks of two machines are compared.
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

from depthmup_flax.util.errors import Busy, RunStopped
from depthmup_flax.workdir.files import link_exclusively, temporary_name

T = TypeVar("T")

log = logging.getLogger(__name__)

BEAT_S = 10.0
EXPIRY_S = 45.0  # several beats: a holder that is stopped or starved of time for less keeps its lock
WAIT_S = 60.0  # longer than EXPIRY_S, so that one start takes over the lock of a lost machine
_POLL_S = 0.25
_CLOCK = getattr(time, "CLOCKBOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """A clock that never jumps, and that continues while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


@dataclasses.dataclass(frozen=True)
class Holder:
    """The content of a lock file."""

    held: bool
    host: str
    pid: int
    boot: str  # of the running kernel: processes with the same one see each other's ``flock``
    kernel_lock: bool  # whether the file system has ``flock``
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def to_json(self) -> bytes:
        """One line, as long for a released lock as for a held one: it is written over the other."""
        return json.dumps(dataclasses.asdict(self)).replace("true,", "true ,", 1).encode() + b"\n"


class Heartbeat(abc.ABC):
    """A lock that this process holds, or has lost: a thread confirms it every `BEAT_S` seconds with `_beat`."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._confirmed_s, self._lost = now_s(), ""
        self._beating, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._beat_until_ended, name=f"heartbeat {path}", daemon=True)
        self._thread.start()

    def check(self, *, now: bool = False) -> None:
        """Returns if the lock is still held; looks at its file ``now``, or after a long stop of this process.

        Raises:
          RunStopped: the directory was deleted or renamed, or another process has taken it over, or it cannot be
            reached.
        """
        if not self._lost and (now or self._is_late()):
            self._beat()
        if self._lost:
            raise RunStopped(f"workdir {str(self.path.parent)!r} {self._lost}")

    def release(self) -> None:
        """Ends the heartbeat and frees the lock; harmless if it is lost."""
        self._ended.set()
        self._thread.join()
        self._free()

    @abc.abstractmethod
    def _beat(self) -> None:
        """Tells other processes that this one lives; sets ``_confirmed_s``, or ``_lost`` to the reason."""

    @abc.abstractmethod
    def _free(self) -> None:
        """Lets other processes take the lock."""

    def _beat_until_ended(self) -> None:
        while not self._ended.wait(BEAT_S) and not self._lost:
            self._beat()

    def _is_late(self) -> bool:
        """Whether this process was stopped for so long that the lock may have expired."""
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
        """Sets the file's time, and looks whether the path still leads to this file."""
        with self._beating:
            started, late = now_s(), self._is_late()
            try:
                _touch(self._file)
                found = _read(self.path, probe=False)
                if late or found is None:  # another process may be taking over; a file server may err once
                    time.sleep(2 * _POLL_S)
                    found = _read(self.path, probe=False)
            except OSError as error:
                if started - self._confirmed_s > EXPIRY_S:  # another machine may have taken over
                    self._lost = f"cannot be reached any more ({error.strerror}): {REMEDY}"
                return
            if found is None:
                self._lost = DELETED
            elif found.holder is None or found.holder.token != self._holder.token:
                self._lost = f"was taken over by {found.holder or 'another process'}: end that process, or let it work."
            else:
                self._confirmed_s = started


REMEDY = "rerun the command, which resumes from what was saved."
DELETED = f"was deleted or renamed while it was in use: restore it, and {REMEDY}"


@contextlib.contextmanager
def held(path: pathlib.Path, wait_s: float | None = None) -> Iterator[Lock]:
    """Holds the lock ``path``; waits for at most ``wait_s`` (default `WAIT_S`) seconds, and says so once.

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
    """What ``attempt`` takes; it also returns who holds the lock ``path``, in words, and is repeated until it succeeds.

    Says once for whom it waits; between two attempts are up to ``poll_s`` seconds. `held` has the rest.
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
    """The process that holds a lock, in words; ``None`` if none does."""
    return _Watch().busy(path)


@dataclasses.dataclass(frozen=True)
class _Found:
    """A lock file at one moment."""

    holder: Holder | None  # None: no content, as after a power cut
    beat: int  # its modification time
    locked: bool | None  # by any process's ``flock``; None: the file system has none


class _Watch:
    """Which of the locks that a process looks at are free."""

    def __init__(self) -> None:
        self._seen: dict[pathlib.Path, tuple[Holder | None, int, float]] = {}  # and when it first looked like this

    def free(self, path: pathlib.Path) -> _Found | None:
        """The lock file, if nobody holds it."""
        found = _read(path)
        if found is None:
            return None
        previous = self._seen.get(path)
        if previous is None or previous[:2] != (found.holder, found.beat):
            previous = self._seen[path] = (found.holder, found.beat, now_s())
        return found if self._is_free(found, now_s() - previous[2]) else None

    def busy(self, path: pathlib.Path) -> str | None:
        """The process that holds the lock, in words."""
        if self.free(path) is not None or (found := _read(path)) is None:
            return None
        return str(found.holder or "another process")

    @staticmethod
    def _is_free(found: _Found, unchanged_s: float) -> bool:
        holder = found.holder
        if holder is not None and not holder.held:
            return True
        if holder is not None and holder.boot == BOOT and holder.kernel_lock:
            return found.locked is False
        return unchanged_s > EXPIRY_S


def _take(path: pathlib.Path, watch: _Watch) -> tuple[int, Holder] | None:
    """Creates the lock file, or replaces a free one; returns the open file, ``None`` if another process holds it.

    Of the processes that find the same lock free, the one that creates a file named after its last holder replaces it.
    That file is a lock in turn: if its creator dies, it is replaced in the same way.
    """
    if _read(path) is None:
        return _create(path)
    found = watch.free(path)
    if found is None:
        return None
    guard = path.with_name(f"{path.name}.{found.holder.token if found.holder else 'unknown'}")
    own = _take(guard, watch)
    if own is None:
        return None
    if _read(path) == found:  # no other process has replaced it, and its holder has not come back
        os.replace(guard, path)
        return own
    guard.unlink()
    os.close(own[0])
    return None


def _create(path: pathlib.Path) -> tuple[int, Holder] | None:
    """Creates a lock file, held by this process from its first moment; ``None`` if there is one."""
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
        with path.open("rb") as file:  # opening asks a file server anew, where a look at the name may not
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
        if error.errno != errno.ESTALE:  # deleted on the server, as a look at the path will show
            raise


def _boot() -> str:
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{platform.node()} {uuid.getnode()}"


BOOT = _boot()
