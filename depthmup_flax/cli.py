"""What the command lines share: config flags, process start-up, process-wide settings, output, exit codes."""

import contextlib
import errno
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn, TextIO

from absl import app, flags
from absl import logging as absl_logging

from depthmup_flax import command_help, config_files, console, shipped_configs
from depthmup_flax.config_files import config_path as config_path  # for the commands
from depthmup_flax.config_files import define_config as define_config
from depthmup_flax.config_files import resolved as resolved
from depthmup_flax.errors import BAD_INPUT, STOPPED, TRY_LATER, Busy, InputError, Preempted, RunStopped, printable
from depthmup_flax.parallel.host import cpu_cores
from depthmup_flax.shipped_configs import run_name

# Messages of libraries that are left out, by a part of their text: Orbax's about a checkpoint without metrics, which
# those between evaluations are, and about errors in its threads, which the run raises; TFDS's about a set that is not
# prepared, which our own message says.
_EXPECTED = (
    "did not provide metrics",
    "in background save thread",
    "_SignalingThread.run() raised an exception",
    "[wait_until_finished] Save Finalize thread",
    "has no dataset_info.json",
)


def one_device_per_core() -> None:
    """Gives JAX one CPU device per core, which is fastest for many small runs; call before JAX starts.

    Does nothing on a GPU or TPU, or if ``XLA_FLAGS`` sets the number of devices.
    """
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        import jax

        jax.config.update("jax_num_cpu_devices", cpu_cores())


def define_processes() -> None:
    """Defines the flags of `start_processes`: ``--coordinator``, ``--num_processes``, ``--process_id``."""
    flags.DEFINE_string("coordinator", None, "Several processes: host:port of process 0.")
    flags.DEFINE_integer("num_processes", None, "Several processes: their number.")
    flags.DEFINE_integer("process_id", None, "Several processes: the number of this one, from 0.")


def start_processes() -> None:
    """Calls `depthmup_flax.parallel.distributed.start` with the flags; call before JAX starts."""
    from depthmup_flax.parallel import distributed

    distributed.start(*(flags.FLAGS[name].value for name in ("coordinator", "num_processes", "process_id")))


def default_workdir(parent: str) -> str:
    """The work directory where none is named: ``parent`` and the name of the config; printed."""
    workdir = f"{parent}/{run_name(config_path())}"
    print(f"--workdir={workdir}", flush=True)
    return workdir


def run(main: Callable[[list[str]], int | None]) -> None:
    """Parses the flags and calls ``main``, which returns the exit code.

    `InputError` and `RunStopped` are printed as one sentence; see `depthmup_flax.errors` for their exit codes. When the
    output has no reader any more (``| head``, a ``tee`` that died, a terminal that is gone), the work continues.
    """
    with contextlib.redirect_stdout(_Lasting(sys.stdout)), contextlib.redirect_stderr(_Lasting(sys.stderr)):
        _run(main)


def _run(main: Callable[[list[str]], int | None]) -> None:
    console.define_quiet()
    if command_help.is_asked_for(sys.argv[1:]):
        print(command_help.help_text(sys.modules[main.__module__].__doc__ or "", config_files.own_flags()))
        return
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("absl").addFilter(lambda record: not any(text in record.getMessage() for text in _EXPECTED))
    try:
        app.run(console.shown(main), flags_parser=config_files.parse)
    except (Busy, Preempted) as error:
        print(error, file=sys.stderr)
        _leave(TRY_LATER)
    except (InputError, RunStopped) as error:
        config_files.print_traceback(error)
        print(f"error: {printable(str(error))}", file=sys.stderr)
        _leave(BAD_INPUT if isinstance(error, InputError) else STOPPED, printable(str(error)))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _leave(128 + signal.SIGINT, "interrupted")
    except Exception:
        if "jax" not in sys.modules or not sys.modules["jax"].distributed.is_initialized():
            raise
        traceback.print_exc()
        hint = "see the log of another process. Rerunning the command resumes from the last checkpoint."
        failed = f"process {sys.modules['jax'].process_index()} failed; the other processes stop with it."
        print(f"error: {failed} If the cause above is a closed connection, {hint}", file=sys.stderr)
        _leave(1, "failed, see its log. Rerunning the command resumes from the last checkpoint.")


def _leave(code: int, why: str = "") -> NoReturn:
    """Ends the process, by `depthmup_flax.parallel.distributed.leave` if others may depend on it."""
    if "jax" not in sys.modules:
        sys.exit(code)
    from depthmup_flax.parallel import distributed

    distributed.leave(code, why)


class _Lasting(io.TextIOBase):
    """Standard output or error that, once it has no reader any more, drops what is written, and says so once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    def close(self) -> None:
        """Does nothing: the stream is the interpreter's."""

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):  # the reader of a pipe has ended; a terminal is gone
                raise
            # Also what the stream has buffered, and what libraries write to the same file.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
            hint = "the work continues without it. To end it, send SIGTERM to process"
            print(
                f"warning: the output is closed ({error.strerror}): {hint} {os.getpid()}.", file=sys.stderr, flush=True
            )


def require_no_arguments(argv: list[str]) -> None:
    """Refuses positional arguments."""
    if len(argv) > 1 and "config" in flags.FLAGS and shipped_configs.is_config(argv[1]):
        raise InputError(f"unexpected argument {argv[1]!r}: a config is written --config={argv[1]}.")
    if len(argv) > 1:
        raise InputError(f"unexpected argument {argv[1]!r}: flags are written --config.model.depth=24.")
