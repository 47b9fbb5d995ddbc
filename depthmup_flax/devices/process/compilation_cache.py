"""The cache of compiled programs, in a directory that only the user can write: what is read there is executed.

JAX compresses programs with zstd where it can, without a checksum, so that a flipped bit makes another program. Here
each has a SHA-256 behind it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import pathlib
import stat

log = logging.getLogger(__name__)

_checked: set[pathlib.Path] = set()  # directories whose programs have checksums
LIMIT_BYTES = 4 * 2**30


def cache_compilations() -> None:
    """Makes JAX keep compiled programs in `cache_directory`; call before JAX starts.

    If others could write to that directory, a warning says that it is not used. The least recently used programs are
    deleted beyond `LIMIT_BYTES`; JAX's own limit would lock a file at every read. Has no effect if
    ``JAX_COMPILATION_CACHE_DIR`` is set.
    """
    import jax  # late: --help does not need it

    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    try:
        directory = cache_directory()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(directory)
        _delete_oldest(directory, LIMIT_BYTES)
    except OSError as error:
        log.warning("compiled programs are not kept for the next start: %s: %s", error.strerror, error.filename)
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a start compiles many small programs
    # JAX hashes the path of XLA's own cache into the names of programs: at another path none would be found.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "")
    with contextlib.suppress(ImportError, AttributeError):  # not public: another version of JAX may lack it
        _add_checksums(directory)


def _add_checksums(directory: pathlib.Path) -> None:
    """Makes JAX write a checksum behind each program in ``directory``, and read no program that lacks its own."""
    from jax._src.lru_cache import LRUCache

    get, put, size = LRUCache.get, LRUCache.put, hashlib.sha256().digest_size
    first = not _checked
    _checked.add(directory)
    if not first:
        return

    def checked_get(self: LRUCache, key: str) -> bytes | None:
        found = get(self, key)
        if found is None or pathlib.Path(self.path) not in _checked:
            return found
        program, digest = found[:-size], found[-size:]
        if hashlib.sha256(program).digest() == digest:
            return program
        pathlib.Path(self.path, f"{key}-cache").unlink(missing_ok=True)  # else JAX would not write it again
        return None

    def checked_put(self: LRUCache, key: str, value: bytes) -> None:
        put(self, key, value + hashlib.sha256(value).digest() if pathlib.Path(self.path) in _checked else value)

    LRUCache.get, LRUCache.put = checked_get, checked_put  # type: ignore[method-assign]


def cache_directory() -> pathlib.Path:
    """``depthmup_flax`` in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    given = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = pathlib.Path(os.path.expanduser("~"))
    if not (given.is_absolute() or home.is_absolute()):
        raise FileNotFoundError(errno.ENOENT, "the home directory is not known", str(home))
    return (given if given.is_absolute() else home / ".cache") / "depthmup_flax"


def _require_private(path: pathlib.Path) -> None:
    """Raises `PermissionError` unless only this user can write to the directory, or replace it."""
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "another user owns the directory", str(path))
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "other users can write to the directory, run chmod go-w on it", str(path))
    for parent in path.resolve().parents:
        found = parent.stat()
        others = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != os.getegid())
        if found.st_uid not in (0, os.geteuid()) or (others and not found.st_mode & stat.S_ISVTX):
            raise PermissionError(errno.EPERM, "other users can replace what is in the directory", str(parent))


def _delete_oldest(directory: pathlib.Path, limit: int) -> None:
    """Deletes the least recently used files until the others have at most ``limit`` bytes."""
    files = []
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process may delete
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                files.append((max(found.st_atime, found.st_mtime), found.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            return
        path.unlink(missing_ok=True)
        total -= size
