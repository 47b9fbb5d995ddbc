"""The traced training step, kept for the next start, which then reads it instead of tracing the step.

JAX finds a compiled program by its StableHLO, which a start has to trace first. `Traces` keeps that StableHLO, exported
by `jax.export`, under a digest of what the step was traced for, with the files of all modules that were loaded then. It
is read only if none of these files has changed. Whatever fails here, the step is traced as without it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax

from depthmup_flax.workdir.files import write_atomically

log = logging.getLogger(__name__)

# Module -> its file, the file's size in bytes and its time of change in nanoseconds.
_Files: TypeAlias = dict[str, tuple[str, int, int]]

_PATHS = ("jax_compilation_cache_dir",)  # settings of JAX that no trace depends on


@dataclasses.dataclass(frozen=True)
class Traces:
    """Where traced programs are kept.

    Attributes:
      directory: only this user can write to it, because what is read there is executed.
      code: files on which a trace depends and which are no modules, such as the config's.
      started_ns: time at which modules were imported. What is changed later is not what was traced, so that no trace
        is kept then.
    """

    directory: pathlib.Path
    code: Sequence[str] = ()
    started_ns: int = dataclasses.field(default_factory=time.time_ns)

    def reused(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], out_shardings: Any, facts: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """``function``, or an equal one for ``arguments`` alone that an earlier start has traced.

        Args:
          function: pure; its result has the tree of its first argument.
          arguments: arrays, or shapes with shardings.
          out_shardings: of the result.
          facts: on what a trace depends besides code, arguments, devices and the settings of JAX; JSON.
        """
        try:
            exported = self._exported(function, arguments, out_shardings, facts)
        except Exception as error:  # such as operations that have no portable form
            log.debug("the step is traced: %s: %s", type(error).__name__, error)
            return function
        tree = jax.tree.structure(arguments[0])
        return _named(function, lambda *given: jax.tree.unflatten(tree, exported.call(*jax.tree.leaves(given))))

    def _exported(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], out_shardings: Any, facts: Mapping[str, Any]
    ) -> jax.export.Exported:
        leaves, tree = jax.tree.flatten(arguments)
        path = self.directory / f"trace-{_digest(leaves, str(tree), {**facts, 'code': [*self.code]})}"
        program = self._read(path)
        if program is None:
            flat = _named(function, lambda *leaves: jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves))))
            places = jax.tree.leaves(out_shardings)
            program = bytes(jax.export.export(jax.jit(flat, out_shardings=places))(*leaves).serialize())
            self._write(path, program)
        # The first start uses the stored form, too, so that it compiles what later ones look for.
        return jax.export.deserialize(bytearray(program))

    def _write(self, path: pathlib.Path, program: bytes) -> None:
        files = self._files()
        changed = [name for name, (_, _, changed_ns) in files.items() if changed_ns > self.started_ns]
        if changed:
            log.debug("the trace is not kept, because these changed since the start: %s", ", ".join(changed))
            return
        listed = json.dumps(files).encode()
        try:
            write_atomically(path, hashlib.sha256(listed + program).digest() + listed + b"\n" + program)
        except OSError as error:
            log.debug("the trace is not kept: %s", error)

    def _read(self, path: pathlib.Path) -> bytes | None:
        """The program in a file, if it is intact and the code is the same."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        files, _, program = content[32:].partition(b"\n")
        if content[:32] != hashlib.sha256(files + program).digest():
            log.debug("%s is damaged", path)
            return None
        before, now = json.loads(files), self._files()
        changed = [name for name, file in before.items() if tuple(file) != (now.get(name) or _stat(file[0]))]
        if changed:
            log.debug("changed since %s was traced: %s", path, ", ".join(changed))
            return None
        return program

    def _files(self) -> _Files:
        loaded = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
        loaded.pop("__main__", None)  # another one for each way to start a command
        files = loaded | {file: file for file in self.code}
        return {name: found for name, file in files.items() if (found := _stat(file))}


def _named(function: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """``other`` with the name of ``function``, which profiles show."""
    other.__name__ = function.__name__
    return other


def _stat(file: str | None) -> tuple[str, int, int] | None:
    if not file:  # built in, or a package without a file
        return None
    try:
        found = os.stat(file)
    except OSError:
        return None
    return file, found.st_size, found.st_mtime_ns


def _digest(leaves: Sequence[Any], tree: str, facts: Mapping[str, Any]) -> str:
    """A name for everything on which a trace depends but the content of its code."""
    places = [getattr(x, "sharding", None) for x in leaves]
    devices = sorted(
        {device for place in places if place is not None for device in place.device_set}, key=lambda d: d.id
    )
    content = {
        "facts": facts,
        "arguments": [(str(x.shape), str(x.dtype), str(place)) for x, place in zip(leaves, places, strict=True)],
        "tree": tree,
        "devices": [f"{device.id} {device.device_kind} {device.client.platform_version}" for device in devices],
        "settings": {name: repr(value) for name, value in jax.config.values.items() if name not in _PATHS},
        "python": sys.version,
        "package": os.path.dirname(os.path.dirname(__file__)),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
