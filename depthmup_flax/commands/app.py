"""The command ``depthmup``: its subcommands, process-wide settings, output and exit codes."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import pathlib
import signal
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from depthmup_flax.commands.parser import Parser
from depthmup_flax.config.field_comments import docstring, summary_of_file
from depthmup_flax.config.files import is_config
from depthmup_flax.util import errors
from depthmup_flax.util.imports import __version__, missing

# Heading -> commands. Each is a module of this package with define(parser) and main(args); its docstring is its help.
GROUPS = {
    "everyday": ("train", "tune", "ladder", "forecast", "sweep", "report"),
    "verify": ("check", "plan", "config", "export"),
}
COMMANDS = [name for names in GROUPS.values() for name in names]

# Parts of messages of libraries that are not shown: Orbax's about checkpoints without metrics and about errors in its
# threads, which the run raises; TFDS's about a set that is not prepared, about which we raise an error.
_EXPECTED = (
    "did not provide metrics",
    "in background save thread",
    "_SignalingThread.run() raised an exception",
    "[wait_until_finished] Save Finalize thread",
    "has no dataset_info.json",
)
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
_INSTALLED = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_LIBRARIES = [_PACKAGE, *(pathlib.Path(path).resolve() for path in _INSTALLED)]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the subcommand in ``argv``, by default the process's."""
    try:
        try:
            _main(argv)
        finally:
            sys.stdout.flush()  # here, as nothing catches what Python raises at its exit
    except BrokenPipeError:
        _end_without_reader()


def _end_without_reader() -> NoReturn:
    """Ends quietly where nobody reads the output, as with | head."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(128 + signal.SIGPIPE)


def _main(argv: Sequence[str] | None) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # signs that the terminal's encoding lacks, such as those of tables
    name, *words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("help", "-h", "--help"):
        print(usage())
    elif name == "--version":
        print(f"depthmup-flax {__version__}")
    elif name in COMMANDS:
        run(name, words)
    else:
        hint = errors.did_you_mean(name, COMMANDS)
        if name.startswith("-") or is_config(name):
            hint = "a command comes first, such as depthmup train --config=digits."
        print(f"error: depthmup has no command {errors.printable(name)!r}: {hint}", file=sys.stderr)
        sys.exit(errors.BAD_INPUT)


def usage() -> str:
    """The help of ``depthmup`` itself."""
    does = lambda name: summary_of_file(pathlib.Path(__file__).with_name(f"{name}.py"))
    rows = lambda names: "\n".join(f"  {name:10} {does(name)}" for name in names)
    commands = "\n\n".join(f"{heading}\n{rows(names)}" for heading, names in GROUPS.items())
    return f"""\
depthmup: tune a small network once, train a deeper, wider one with the same hyperparameters.

{commands}

for example
  depthmup tune --config=digits_deep --compare=sp
  depthmup train --config=digits
  depthmup sweep --config=sweeps/digits && depthmup report
  depthmup config

depthmup COMMAND --help explains a command."""


def module_and_parser(name: str) -> tuple[ModuleType, Parser]:
    """The module of a command, and the parser of its flags."""
    module = importlib.import_module(f"depthmup_flax.commands.{name}")
    parser = Parser(name, docstring(module))
    module.define(parser)
    return module, parser


def run(name: str, words: Sequence[str] | None = None) -> None:
    """Runs a subcommand with these words, by default the process's, and exits with a code of `util.errors`.

    `InputError` and `RunStopped` are printed as one sentence, `UserCodeError` with the traceback of the user's code.
    """
    args = argparse.Namespace(traceback=False)
    try:
        module, parser = module_and_parser(name)
        args = parser.parsed(list(sys.argv[1:] if words is None else words))
        _show_messages(args)
        code = module.main(args)
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:
        _end_without_reader()
    except (Exception, KeyboardInterrupt) as error:
        _end(error, f"depthmup {name}", args.traceback)


def _absent_devices(error: BaseException) -> errors.InputError | None:
    """The error to raise instead of JAX's own, if it finds no device of the platform that the environment names."""
    named = os.environ.get("JAX_PLATFORMS", "")
    frames = traceback.extract_tb(error.__traceback__)
    if not named or not frames or os.path.basename(frames[-1].filename) != "xla_bridge.py":
        return None
    return errors.InputError(
        f"JAX_PLATFORMS is {named!r}, of which JAX finds no device: unset it, or install JAX for it, as .[tpu] and "
        ".[cuda] do."
    )


def _end(error: BaseException, command: str, with_traceback: bool) -> NoReturn:
    """Prints the sentence of an error and ends the process; raises an error that has none."""
    if isinstance(error, ImportError):
        error = missing(error, command) or error
    error = _absent_devices(error) or error
    if isinstance(error, (errors.Busy, errors.Preempted)):
        text, code = str(error), errors.TRY_LATER
    elif isinstance(error, (errors.InputError, errors.RunStopped)):
        if with_traceback and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        text, code = f"error: {error}", errors.BAD_INPUT if isinstance(error, errors.InputError) else errors.STOPPED
    elif isinstance(error, errors.UserCodeError):
        cause = error.__cause__ or error
        shown = "".join(traceback.format_exception(cause)) if with_traceback else user_traceback(cause)
        text, code = f"error: {error}\n\n{shown.rstrip()}", 1
    elif isinstance(error, KeyboardInterrupt):
        text, code = "interrupted", 128 + signal.SIGINT
    elif "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        traceback.print_exception(error)
        failed = f"process {sys.modules['jax'].process_index()} failed; the other processes stop, too."
        hint = "If its connection was closed, see the log of another process."
        text, code = f"error: {failed} {hint} Rerun the command: it resumes from the last checkpoint.", 1
    else:
        raise error
    print(errors.printable(text), file=sys.stderr)
    if "jax" not in sys.modules:
        sys.exit(code)
    from depthmup_flax.devices import distributed

    distributed.leave(code)  # there may be other processes


def _show_messages(args: argparse.Namespace) -> None:
    from absl import flags
    from absl import logging as absl_logging

    from depthmup_flax.commands import console

    flags.FLAGS.mark_as_parsed()  # libraries read flags of absl
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("absl").addFilter(lambda record: not any(text in record.getMessage() for text in _EXPECTED))
    as_json = getattr(args, "json", False)  # one object is the whole output
    level = logging.WARNING if as_json else logging.INFO
    console.show(traceback=args.traceback, level=level).quiet = args.quiet or as_json


def user_traceback(error: BaseException) -> str:
    """The traceback of an exception with the frames outside of libraries; with all frames if there are no others."""
    summary = traceback.TracebackException.from_exception(error)
    summary.__cause__ = summary.__context__ = None  # JAX's notes about its own frames
    inside = lambda file: any(pathlib.Path(os.path.realpath(file)).is_relative_to(library) for library in _LIBRARIES)
    own = [one for one in summary.stack if not one.filename.startswith("<frozen") and not inside(one.filename)]
    if own or isinstance(error, SyntaxError):  # which has its own line
        summary.stack = traceback.StackSummary.from_list(own)
    return "".join(summary.format())
