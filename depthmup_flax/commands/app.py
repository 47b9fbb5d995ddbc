"""The command ``depthmup``: its subcommands, process-wide settings, output and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, TextIO

from depthmup_flax.commands.parser import is_help_asked_for
from depthmup_flax.commands.table import COMMANDS, GROUPS, module_and_parser
from depthmup_flax.commands.user_traceback import user_traceback
from depthmup_flax.config import shipped
from depthmup_flax.util.errors import (
    BAD_INPUT,
    STOPPED,
    TRY_LATER,
    Busy,
    InputError,
    Preempted,
    RunStopped,
    UserCodeError,
    did_you_mean,
    printable,
)
from depthmup_flax.util.extras import missing
from depthmup_flax.util.version import __version__

# They end with their reader, as in | head.
_PRINTING = ("config", "doctor", "completion", "report", "plan", "predict")
_EXAMPLES = """\
  depthmup tune --config=digits_deep --compare=sp
  depthmup train --config=digits
  depthmup sweep --config=sweeps/digits && depthmup report
  depthmup config"""

# Parts of messages of libraries that are not shown: Orbax's about checkpoints without metrics and about errors in its
# threads, which the run raises; TFDS's about a set that is not prepared, about which we raise an error.
_EXPECTED = (
    "did not provide metrics",
    "in background save thread",
    "_SignalingThread.run() raised an exception",
    "[wait_until_finished] Save Finalize thread",
    "has no dataset_info.json",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the subcommand in ``argv``, by default the process's."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        from depthmup_flax.commands import completion

        completion.offer()
    name, *words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name == "help" and words:
        name, *words = words[0], "--help"
    if name == "help" or is_help_asked_for([name]):
        with _output(ends=True):
            print(usage())
    elif name == "--version":
        print(f"depthmup-flax {__version__}")
    elif name in COMMANDS:
        run(name, words)
    else:
        print(f"error: depthmup has no command {printable(name)!r}: {_command_for(name)}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def _command_for(word: str) -> str:
    """What to type in place of a word that is no command."""
    if word.startswith("-") or shipped.is_config(word):
        config = word if word.startswith("--config=") else f"--config={'digits' if word.startswith('-') else word}"
        return f"a command comes first, such as depthmup train {config}."
    return did_you_mean(word, COMMANDS)


def usage() -> str:
    """The help of ``depthmup`` itself."""
    rows = lambda group: "\n".join(f"  {name:14} {what}" for name, what in group.items())
    commands = "\n\n".join(f"{heading}\n{rows(group)}" for heading, group in GROUPS.items())
    return f"""\
depthmup: tune a small network once, train a deeper, wider one with the same hyperparameters.

{commands}

for example
{_EXAMPLES}

depthmup COMMAND --help explains a command."""


def run(name: str, words: Sequence[str] | None = None) -> None:
    """Runs a subcommand with these words, by default the process's, and exits with a code of `util.errors`.

    `InputError` and `RunStopped` are printed as one sentence, `UserCodeError` with the traceback of the user's code. A
    closed output (``| head``, a closed terminal) does not stop the work, except of commands that only print.
    """
    words = list(sys.argv[1:] if words is None else words)
    with _output(ends=name in _PRINTING or is_help_asked_for(words)):
        code = _run(name, words)
    sys.exit(code)


def _run(name: str, words: Sequence[str]) -> int | None:
    args = argparse.Namespace(traceback=False)
    try:
        with interruptible():
            module, parser = module_and_parser(name)
            if is_help_asked_for(words):
                print(parser.format_help())
                return 0
            args = parser.parsed(words)
            _show_messages(args)
        return module.main(args)
    except ImportError as error:
        if (explained := missing(error, f"depthmup {name}")) is None:
            raise
        print(f"error: {explained}", file=sys.stderr)
        _leave(BAD_INPUT)
    except (Busy, Preempted) as error:
        print(error, file=sys.stderr)
        _leave(TRY_LATER)
    except MemoryError as error:
        asked = f" ({error})" if str(error) else ""  # NumPy says for how much
        print(f"error: the memory of this machine is too small{asked}: use smaller sizes.", file=sys.stderr)
        _leave(BAD_INPUT)
    except (InputError, RunStopped) as error:
        if getattr(args, "traceback", False) and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(f"error: {printable(str(error))}", file=sys.stderr)
        _leave(BAD_INPUT if isinstance(error, InputError) else STOPPED)
    except UserCodeError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        cause = error.__cause__ or error
        if getattr(args, "traceback", False):
            traceback.print_exception(cause)
        else:
            print(f"\n{printable(user_traceback(cause))}", file=sys.stderr, end="")
        _leave(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _leave(128 + signal.SIGINT)
    except Exception:
        if "jax" not in sys.modules or not sys.modules["jax"].distributed.is_initialized():
            raise
        traceback.print_exc()
        failed = f"process {sys.modules['jax'].process_index()} failed; the other processes stop, too."
        hint = "If its connection was closed, see the log of another process."
        print(f"error: {failed} {hint} Rerun the command: it resumes from the last checkpoint.", file=sys.stderr)
        _leave(1)


def _show_messages(args: argparse.Namespace) -> None:
    from absl import flags
    from absl import logging as absl_logging

    from depthmup_flax.commands import console

    flags.FLAGS.mark_as_parsed()  # libraries read flags of absl
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("absl").addFilter(lambda record: not any(text in record.getMessage() for text in _EXPECTED))
    as_json = getattr(args, "json", False)  # one object is the whole output
    level = logging.WARNING if as_json else logging.INFO
    console.show(traceback=getattr(args, "traceback", False), level=level).quiet = args.quiet or as_json


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C during imports ends the process at once, without a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else the shell or the caller has set another
        signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupted(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


def _leave(code: int) -> NoReturn:
    """Ends the process; by `depthmup_flax.devices.distributed.leave` if there may be other processes."""
    if "jax" not in sys.modules:
        sys.exit(code)
    from depthmup_flax.devices import distributed

    distributed.leave(code)


@contextlib.contextmanager
def _output(*, ends: bool) -> Iterator[None]:
    """Standard output and error as `_Lasting`."""
    output, errors = (
        # A closed file descriptor (>&-): what would be shown is dropped.
        io.StringIO() if stream is None else _Lasting(stream, ends)
        for stream in (sys.stdout, sys.stderr)
    )
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        yield
        output.flush()


class _Lasting:
    """Standard output or error that drops text once it has no reader, after one warning.

    With ``ends``, the process ends instead, by SIGPIPE as other programs do. The signal's own default would also end it
    when a server closes a connection.
    """

    def __init__(self, stream: TextIO, ends: bool) -> None:
        self._stream, self._ends = stream, ends

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):  # a closed pipe; a closed terminal
                raise
            if self._ends and error.errno == errno.EPIPE and hasattr(signal, "SIGPIPE"):
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                signal.raise_signal(signal.SIGPIPE)
            # Drops also what the stream has buffered, and what libraries write to the same file.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
            hint = f"the work continues without it. To stop it: kill {os.getpid()}."
            print(f"warning: the output is closed ({error.strerror}): {hint}", file=sys.stderr, flush=True)
