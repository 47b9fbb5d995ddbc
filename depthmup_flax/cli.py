"""What the command lines share: a config file with fields to override, and one sentence for a wrong one."""

from __future__ import annotations

import functools
import os
import pathlib
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import jax
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from depthmup_flax.errors import BAD_INPUT, PREEMPTED, STOPPED, InputError, Preempted, RunStopped
from depthmup_flax.parallel import distributed


def define_config(help_text: str) -> Any:
    """The flag ``--config``, a Python file with ``get_config()``; any field is a flag ``--config.section.field``."""
    return config_flags.DEFINE_config_file("config", None, help_text)


def resolved(flag: Any) -> ConfigDict:
    """The config of `define_config`'s flag, with what the command line sets.

    Raises:
      InputError: no file was named, or it cannot be read.
    """
    if not flags.FLAGS["config"].present:
        raise InputError("--config is not set: name a Python file with get_config(), such as configs/digits.py.")
    path = config_path()
    try:
        flag.value.to_dict()  # a file that was not found fails when it is looked at
    except OSError as error:
        raise InputError(f"--config={path} cannot be read: name a Python file with get_config().") from error
    return flag.value


def config_path() -> str:
    """The file that ``--config`` names, with what follows its colon."""
    return config_flags.get_config_filename(flags.FLAGS["config"])


def one_device_per_core() -> None:
    """Makes the CPU one JAX device per core, which serves many small runs best; call before JAX is used.

    Without effect on a GPU or TPU, or if ``XLA_FLAGS`` sets a number.
    """
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        jax.config.update("jax_num_cpu_devices", cores)


def define_processes() -> None:
    """The flags ``--coordinator``, ``--num_processes``, ``--process_id`` of `start_processes`."""
    flags.DEFINE_string("coordinator", None, "Several processes: host:port of process 0. Default: the environment's.")
    flags.DEFINE_integer("num_processes", None, "Several processes: how many, with --coordinator.")
    flags.DEFINE_integer("process_id", None, "Several processes: which one this is, from 0, with --coordinator.")


def start_processes() -> None:
    """`depthmup_flax.parallel.distributed.start` with the flags; call before JAX is used."""
    distributed.start(*(flags.FLAGS[name].value for name in ("coordinator", "num_processes", "process_id")))


def run(main: Callable[[list[str]], int | None], *, default_config: pathlib.Path | None = None) -> None:
    """Parses flags and calls ``main``, whose result is the exit code.

    `InputError` and `RunStopped` are printed as one sentence; their exit codes are in `depthmup_flax.errors`.
    """
    logging.set_verbosity(logging.WARNING)
    try:
        app.run(main, flags_parser=functools.partial(_parse, default_config))
    except (InputError, RunStopped) as error:
        if isinstance(error, Preempted):
            print(error, file=sys.stderr)
            _exit(PREEMPTED)
        print(f"error: {error}", file=sys.stderr)
        _exit(BAD_INPUT if isinstance(error, InputError) else STOPPED)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _exit(128 + signal.SIGINT)
    except Exception:
        if not distributed.joined():
            raise
        traceback.print_exc()
        print(
            f"error: process {distributed.process_id()} cannot go on, and the others end with it. If a connection was "
            "closed above, look for the cause in the output of another process. The same command goes on from the last "
            "checkpoint.",
            file=sys.stderr,
        )
        _exit(1)


def _exit(code: int) -> NoReturn:
    """Not by ``sys.exit``, which waits for threads that read data and may hang, and for the other processes."""
    distributed.leave(code)


def require_no_arguments(argv: list[str]) -> None:
    """What is left after the flags is a mistake."""
    if len(argv) > 1:
        raise InputError(f"unexpected argument {argv[1]!r}: flags are written --config.model.depth=24.")


def _parse(default_config: pathlib.Path | None, argv: list[str]) -> list[str]:
    named = any(argument.split("=")[0] in ("--config", "-config") for argument in argv)
    if default_config is not None and not named:
        argv = [argv[0], f"--config={default_config}", *argv[1:]]
    argv = _with_scale(argv)
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        if "get_config() takes 0 positional arguments" in str(error):
            raise InputError("this config has no scale: leave out --config.scale and what follows a colon.") from error
        raise _refusal_of_the_file(error) or InputError(str(error)) from error
    except (AttributeError, KeyError) as error:
        if "ml_collections" not in traceback.extract_tb(error.__traceback__)[-1].filename:
            raise  # from inside the config file
        cause = error.args[0] if isinstance(error.args[0], KeyError) else error
        name, *hint = str(cause.args[0]).splitlines()  # 'dpth', then perhaps: Did you mean "depth" instead of "dpth"?
        raise InputError(f"config has no field {name}. {' '.join(hint)}".rstrip()) from error


def _refusal_of_the_file(error: BaseException | None) -> InputError | None:
    """The sentence that ``get_config`` refused with; ml_collections buries it in a traceback within a flag error."""
    found = None
    while error is not None:  # the innermost is the file's own
        found = error if isinstance(error, InputError) else found
        error = error.__cause__ or error.__context__
    return found


def _with_scale(argv: list[str]) -> list[str]:
    """``--config=file.py --config.scale=gpu`` as ``--config=file.py:gpu``, because a scale is for ``get_config``."""
    joined: list[str] = []  # --flag value as --flag=value
    for argument in argv:
        if joined and joined[-1] in ("--config", "-config", "--config.scale", "-config.scale"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    scales = [argument.partition("=")[2] for argument in joined if argument.lstrip("-").startswith("config.scale=")]
    if not scales:
        return argv
    kept = [argument for argument in joined if not argument.lstrip("-").startswith("config.scale=")]
    named = ("--config=", "-config=")
    return [f"{argument}:{scales[-1]}" if argument.startswith(named) else argument for argument in kept]
