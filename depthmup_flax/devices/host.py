"""This host: its cores, the cache of compiled programs, options of the compiler."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import stat
from collections.abc import Callable, Sequence
from typing import Any

log = logging.getLogger(__name__)

CACHE_BYTES = 4 * 2**30
_LEVEL = "xla_backend_optimization_level"


def cpu_cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_directory() -> pathlib.Path:
    """``depthmup_flax`` in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "depthmup_flax"


def cache_compilations() -> None:
    """Makes JAX keep compiled programs in `cache_directory`, also small ones; call before JAX starts.

    Programs are executed, so a warning says that the directory is not used if other users could write to it. JAX's own
    variables go first: ``JAX_COMPILATION_CACHE_DIR`` names another directory.
    """
    import jax  # late: --help does not need it

    # A start compiles many small programs. And JAX hashes the path of XLA's own cache into the names of programs: at
    # another path none would be found.
    wanted = {"jax_persistent_cache_min_compile_time_secs": 0.0, "jax_persistent_cache_enable_xla_caches": ""}
    for name, value in wanted.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    try:
        cache_directory().mkdir(mode=0o700, parents=True, exist_ok=True)
        found = cache_directory().stat()
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"other users can write to {cache_directory()}")
        _drop_half_written(cache_directory())
    except (OSError, RuntimeError) as error:
        log.warning("compiled programs are not kept for the next start: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_directory()))
    jax.config.update("jax_compilation_cache_max_size", CACHE_BYTES)


def _drop_half_written(directory: pathlib.Path) -> None:
    """Deletes programs whose file of their last use is missing: JAX, killed between the two, would warn for ever."""
    names = set(os.listdir(directory))
    for name in names:
        if name.endswith("-cache") and f"{name.removesuffix('-cache')}-atime" not in names:
            (directory / name).unlink(missing_ok=True)


def drawing_options(platform: str) -> dict[str, str] | None:
    """``compiler_options`` of `jax.jit` for a program that draws parameters.

    At its default level XLA:CPU compiles the random numbers of SimpleResNet 32x6 in 15.5 s of processor time instead of
    2.2 s (jax 0.10.2; at level 2 in 2.6 s). The numbers are equal, but not at level 0. A level in ``XLA_FLAGS`` or
    JAX's ``jax_disable_most_optimizations`` takes precedence.
    """
    import jax

    chosen = _LEVEL in os.environ.get("XLA_FLAGS", "") or jax.config.values["jax_disable_most_optimizations"]
    return {_LEVEL: "1"} if platform == "cpu" and not chosen else None


def drawn(init: Callable[..., Any], *args: Any) -> Any:
    """The result of a function that draws parameters, without what else it computes.

    Its operations run one after another: each compiles once for a shape, whatever the depth.
    """
    return drawn_each(init, [args])[0]


def drawn_each(init: Callable[..., Any], several: Sequence[tuple[Any, ...]]) -> list[Any]:
    """`drawn` for several arguments of the same shapes, traced once."""
    import jax
    from jax.interpreters import partial_eval

    closed, shapes = jax.make_jaxpr(init, return_shape=True)(*several[0])
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.out_avals), instantiate=True)
    tree = jax.tree.structure(shapes)
    return [jax.tree.unflatten(tree, _in_turn(jaxpr, closed.consts, jax.tree.leaves(args))) for args in several]


def _in_turn(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr whose operations run one after another."""
    import jax
    from jax.extend import core

    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))
    value_of = lambda x: x.val if isinstance(x, core.Literal) else values[x]
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("jit", "pjit"):  # such as `jax.random.normal`
            results = _compiled(eqn.params["jaxpr"])(*map(value_of, eqn.invars))
        else:
            inputs = list(dict.fromkeys(x for x in eqn.invars if not isinstance(x, core.Literal)))
            alone = jaxpr.replace(constvars=[], invars=inputs, outvars=eqn.outvars, eqns=[eqn])
            results = core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*map(value_of, inputs))
        values |= zip(eqn.outvars, results, strict=True)
    return [jax.numpy.asarray(value_of(x)) for x in jaxpr.outvars]


@functools.lru_cache(maxsize=256)
def _compiled(jaxpr: Any) -> Callable[..., Any]:
    import jax
    from jax.extend import core

    return jax.jit(core.jaxpr_as_fun(jaxpr), compiler_options=drawing_options(jax.default_backend()))
