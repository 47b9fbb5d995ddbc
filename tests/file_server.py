"""File operations as slow, and as late to show the changes of other clients, as those of a file server."""

from __future__ import annotations

import errno
import io
import os
import random
import time

_CALLS = ("open", "stat", "lstat", "link", "mkdir", "rename", "replace", "scandir", "unlink", "utime", "listdir")


def slow_down(delay_s: float, hidden_s: float, rng: random.Random) -> None:
    """Makes every metadata call of this process take up to ``delay_s`` seconds before and after it takes place.

    A name that was looked up in vain stays absent for this process for ``hidden_s`` seconds more, unless the process
    creates it: file servers' clients remember what is absent.
    """
    absent: dict[str, float] = {}

    def slow(function, creates):
        def call(path, *args, **kwargs):
            name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
            time.sleep(rng.uniform(0, delay_s))
            if name is not None and not creates(*args, **kwargs) and time.monotonic() < absent.get(name, 0):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            try:
                return function(path, *args, **kwargs)
            except FileNotFoundError:
                if name is not None and name not in absent:
                    absent[name] = time.monotonic() + hidden_s
                raise
            finally:
                time.sleep(rng.uniform(0, delay_s))

        return call

    def opens_new(*args, **kwargs):
        mode = kwargs.get("mode", args[0] if args else "r")
        return (mode & os.O_CREAT) if isinstance(mode, int) else mode[0] in "wax"

    reads = {"stat", "lstat"}
    for name in _CALLS:
        creates = opens_new if name == "open" else (lambda *_, reading=name in reads, **__: not reading)
        setattr(os, name, slow(getattr(os, name), creates))
    io.open = slow(io.open, opens_new)
