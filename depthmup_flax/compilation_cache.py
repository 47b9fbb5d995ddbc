"""Where compiled programs are kept for the next start: in the user's cache, because what is read there is executed."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import pathlib
import platform
import stat
from importlib.metadata import version

log = logging.getLogger(__name__)

LIMIT_BYTES = 4 * 2**30  # of all versions together


def cache_compilations() -> pathlib.Path | None:
    """Makes JAX write compiled programs to the user's cache and read them on the next start; call before JAX starts.

    The directory is ``depthmup_flax/compiled-...`` in ``XDG_CACHE_HOME`` or ``~/.cache``, one for each version of JAX
    and kind of CPU. If others could write to it, it is not used, and a warning says so. Programs that were not used for
    longest are deleted beyond `LIMIT_BYTES`. Has no effect if ``JAX_COMPILATION_CACHE_DIR`` is set.

    Returns:
      The directory, to which only this user can write, if it is used.
    """
    import jax  # late: --help does without

    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return None
    try:
        home = cache_home()
        directory = home / f"compiled-{version('jax')}-{version('jaxlib')}-{_cpu()}"
        for path in (home, directory):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _require_private(path)
        _delete_oldest(home, LIMIT_BYTES)
    except OSError as error:
        log.warning("compiled programs are not kept for the next start: %s: %s", error.strerror, error.filename)
        return None
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a start compiles many small programs
    # JAX hashes the path of XLA's own cache into the names of programs, so that none would be found at another path.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "")
    return directory


def cache_home() -> pathlib.Path:
    """The directory of all versions' compiled programs."""
    given = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = pathlib.Path(os.path.expanduser("~"))
    if not (given.is_absolute() or home.is_absolute()):
        raise FileNotFoundError(errno.ENOENT, "the home directory is not known", str(home))
    return (given if given.is_absolute() else home / ".cache") / "depthmup_flax"


def _cpu() -> str:
    """A name for this kind of CPU: a program for another one may end the process."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    kind = sorted({line for line in lines if line.split("\t")[0].rstrip() in ("model name", "flags", "Features")})
    return hashlib.sha256("\n".join([platform.machine(), *kind]).encode()).hexdigest()[:8]


def _require_private(path: pathlib.Path) -> None:
    """Raises `PermissionError` unless only this user can write to the directory."""
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "another user owns the directory", str(path))
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "other users can write to the directory, so run chmod go-w on it", str(path))


def _delete_oldest(home: pathlib.Path, limit: int) -> None:
    """Deletes the files that were not used for longest, so that the others have at most ``limit`` bytes."""
    files = []
    for path in home.glob("compiled-*/*"):
        try:
            found = path.stat()
        except FileNotFoundError:  # another process deletes, too
            continue
        if stat.S_ISREG(found.st_mode):
            files.append((max(found.st_atime, found.st_mtime), found.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            return
        path.unlink(missing_ok=True)
        total -= size
