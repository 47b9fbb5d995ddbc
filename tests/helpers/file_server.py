"""File operations as slow, and as late to show the changes of other clients, as those of a file server."""

from __future__ import annotations

import errno
import io
import os
import random
import time

_READS = ("stat", "lstat")
_CHANGES = ("link", "mkdir", "rename", "replace", "unlink", "utime")


class FileServer:
    """What one client sees.

    Every metadata call takes up to ``delay_s`` seconds before and after it takes place. The client remembers for
    ``hidden_s`` seconds which names are absent and which files the others are, as file servers' clients do, until it
    changes something in the same directory itself.
    """

    def __init__(self, delay_s: float, hidden_s: float, rng: random.Random) -> None:
        self._delay_s, self._hidden_s, self._rng = delay_s, hidden_s, rng
        self._absent: dict[str, float] = {}  # until when
        self._present: dict[str, tuple[int, float]] = {}  # a descriptor of the file, and until when
        self._os_open, self._os_close = os.open, os.close

    def mount(self) -> None:
        """Replaces the functions of this process."""
        for name in (*_READS, *_CHANGES, "scandir", "listdir"):
            setattr(os, name, self._slow(getattr(os, name), name in _READS, name in _CHANGES))
        os.open = self._slow(os.open, False, True)
        real = io.open

        def open_file(path, mode="r", *args, **kwargs):
            if mode[0] != "r" or not isinstance(path, str | os.PathLike):
                return self._slow(real, False, True)(path, mode, *args, **kwargs)
            return self._slow(self._open_remembered, True, False)(path, mode, *args, real=real, **kwargs)

        io.open = open_file

    def _slow(self, function, reads, changes):
        def call(path, *args, **kwargs):
            name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
            self._sleep()
            if reads and time.monotonic() < self._absent.get(name, 0.0):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            try:
                return function(path, *args, **kwargs)
            except FileNotFoundError:
                if reads:
                    self._absent.setdefault(name, time.monotonic() + self._hidden_s)
                raise
            finally:
                if changes and name is not None:
                    self._forget(os.path.dirname(name))
                self._sleep()

        return call

    def _open_remembered(self, path, *args, real, **kwargs):
        name = os.fspath(path)
        file, until = self._present.get(name, (None, 0.0))
        if time.monotonic() < until:
            return real(f"/proc/self/fd/{file}", *args, **kwargs)
        opened = real(path, *args, **kwargs)
        if file is not None:
            self._os_close(file)
        again = self._os_open(f"/proc/self/fd/{opened.fileno()}", os.O_RDONLY)
        self._present[name] = again, time.monotonic() + self._hidden_s
        return opened

    def _forget(self, directory):
        for name in [name for name in self._present if os.path.dirname(name) == directory]:
            self._os_close(self._present.pop(name)[0])
        for name in [name for name in self._absent if os.path.dirname(name) == directory]:
            del self._absent[name]

    def _sleep(self):
        time.sleep(self._rng.uniform(0, self._delay_s))
