"""A lock in a bucket, made of objects that are created only if absent.

``.lock.000007`` is the seventh holder's. The holder rewrites it every `lock.BEAT_S` seconds and marks it as free at the
end. If the latest object is free, or was not written for `lock.EXPIRY_S` by the clock of the storage, another process
takes the lock by creating the next number: of several that try, one succeeds. A holder that finds a later number has
lost the lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import secrets
import socket
from collections.abc import Iterator

from depthmup_flax.storage.workdir import buckets
from depthmup_flax.storage.workdir.lock import BOOT, DELETED, EXPIRY_S, Heartbeat, now_s, taken_in_time
from depthmup_flax.util.types import Json

_POLL_S = 4.0  # at most, between two reads of a lock that another process holds

_mine: set[str] = set()  # tokens of locks that threads of this process hold or want


class BucketLock(Heartbeat):
    """A lock that this process holds, or has lost; made by `held`."""

    def __init__(self, path: pathlib.Path, number: int, holder: Json) -> None:
        self._number, self._holder = number, holder
        super().__init__(path)

    def _free(self) -> None:
        self._beat(held=False)
        _mine.discard(self._holder["token"])

    def _beat(self, *, held: bool = True) -> None:
        """Rewrites the object, unless there is a later one."""
        # Errors are ignored: an unreachable bucket takes no writes that the lock protects, either.
        with self._beating, contextlib.suppress(Exception):
            started = now_s()
            latest = max(_numbers(self.path), default=0)
            if latest < self._number:
                self._lost = DELETED
            elif latest > self._number:
                self._lost = f"was taken over by {_words(_read(self.path, latest))}: stop that process, or wait for it."
            else:
                buckets.put(_object(self.path, latest), json.dumps({**self._holder, "held": held}))
                self._confirmed_s = started


@contextlib.contextmanager
def held(path: pathlib.Path, wait_s: float | None = None) -> Iterator[BucketLock]:
    """Holds the lock ``path``; `Busy` if another process still holds it after ``wait_s``, by default `lock.WAIT_S`."""
    lock = taken_in_time(path, wait_s, lambda: _attempt(path), _POLL_S)
    try:
        yield lock
    finally:
        lock.release()


def busy(path: pathlib.Path) -> str | None:
    """Describes the process that holds a lock; ``None`` if it is free."""
    latest = max(_numbers(path), default=0)
    holder = _read(path, latest) if latest else None
    return None if holder is None or _is_free(path, latest, holder) else _words(holder)


def locks_in(directory: pathlib.Path) -> list[pathlib.Path]:
    """The locks of a directory."""
    return sorted({path.with_suffix("") for path in directory.glob(".lock*") if _NUMBER.fullmatch(path.suffix)})


def _attempt(path: pathlib.Path) -> tuple[BucketLock | None, str | None]:
    """The lock if this process can take it, else a description of the holder if known."""
    numbers = _numbers(path)
    latest = max(numbers, default=0)
    other = _read(path, latest) if latest else None
    if other is not None and not _is_free(path, latest, other):
        return None, _words(other)
    holder = {**_identity(), "token": secrets.token_hex(8), "held": True}
    _mine.add(holder["token"])
    if not buckets.put_new(_object(path, latest + 1), json.dumps(holder)):
        return None, None
    for number in numbers:
        _object(path, number).unlink(missing_ok=True)
    return BucketLock(path, latest + 1, holder), None


def _is_free(path: pathlib.Path, number: int, holder: Json) -> bool:
    """Whether a lock was freed, its process is gone, or it has expired."""
    if not holder["held"] or _is_gone(holder):
        return True
    # Use the storage's clock: those of machines may differ.
    probe = path.with_name(f"{path.name}-clock-{secrets.token_hex(8)}")
    buckets.put(probe, b"")
    try:
        return buckets.modified(probe) - buckets.modified(_object(path, number)) > EXPIRY_S
    except FileNotFoundError:  # another process has just taken the lock and deleted this object
        return False
    finally:
        probe.unlink(missing_ok=True)


_NUMBER = re.compile(r"\.\d{6,}")


def _object(path: pathlib.Path, number: int) -> pathlib.Path:
    return path.with_name(f"{path.name}.{number:06d}")


def _numbers(path: pathlib.Path) -> list[int]:
    files = [file for file in path.parent.glob(f"{path.name}.*") if file.stem == path.name]
    return [int(file.suffix[1:]) for file in files if _NUMBER.fullmatch(file.suffix)]


def _read(path: pathlib.Path, number: int) -> Json:
    try:
        return dict(json.loads(_object(path, number).read_text()))
    except FileNotFoundError:  # another process has just taken the lock and deleted this object
        return {"held": True}


def _words(holder: Json) -> str:
    return f"process {holder['pid']} on {holder['host']}" if "pid" in holder else "another process"


def _identity() -> Json:
    """Identifies this process among all machines; without /proc only for a reader."""
    identity: Json = {"host": socket.gethostname(), "pid": os.getpid()}
    with contextlib.suppress(OSError):
        identity |= {"machine": f"{BOOT} {os.readlink('/proc/self/ns/pid')}", "started": _started(os.getpid())}
    return identity


def _is_gone(holder: Json) -> bool:
    """Whether the holder was a process of this machine that has ended."""
    if holder.get("machine") is None or holder["machine"] != _identity().get("machine"):
        return False
    started = _started(holder["pid"])
    if holder["pid"] == os.getpid() and holder["started"] == started:
        return holder["token"] not in _mine
    return holder["started"] != started


def _started(pid: int) -> str | None:
    """When a process of this machine started, in clock ticks since boot; ``None`` if it has ended."""
    try:
        state, *numbers = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else numbers[18]
