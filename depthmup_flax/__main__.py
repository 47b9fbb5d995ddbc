"""The command ``depthmup``: its subcommands, each a module with ``main`` that also runs as ``python -m``."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence

from depthmup_flax import __version__
from depthmup_flax.errors import BAD_INPUT, did_you_mean, printable

# Name -> module with main(argv), and what it does.
COMMANDS = {
    "train": ("depthmup_flax.training.__main__", "train one network"),
    "sweep": ("depthmup_flax.sweep.__main__", "train a grid over learning rate, width, depth, seed, ..."),
    "report": ("depthmup_flax.report.__main__", "figures, tables and a verdict from a sweep"),
    "tune": ("depthmup_flax.tune.__main__", "tune a small network, write the config of the large one"),
    "check": ("depthmup_flax.coord_check.__main__", "the coordinate check: does a network follow the rule?"),
    "predict": ("depthmup_flax.predict", "apply a trained network"),
    "plan": ("depthmup_flax.plan.__main__", "memory, time and communication on devices that you do not have"),
    "limits": ("depthmup_flax.limits.__main__", "theory of infinite networks against trained ones"),
    "config": ("depthmup_flax.explain_config", "list the shipped configs; explain, copy one"),
    "doctor": ("depthmup_flax.doctor", "what is installed, what is missing"),
    "completion": ("depthmup_flax.completion", "a script for the TAB key of bash, zsh, fish"),
}
_PRINTING = ("config", "doctor", "completion")  # their output is their work: they end with their reader, as in | head
_EXAMPLES = """\
  depthmup train --config=digits
  depthmup sweep --config=sweeps/digits && depthmup report
  depthmup config"""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the subcommand that ``argv``, by default the process's, names first."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name == "help" and arguments:  # as git has it
        name, *arguments = arguments[0], "--help"
    if name in ("--help", "-h", "help"):
        print(usage())
    elif name == "--version":
        print(f"depthmup-flax {__version__}")
    elif name in COMMANDS:
        run(name, arguments)
    else:
        print(f"error: depthmup has no command {printable(name)!r}: {did_you_mean(name, COMMANDS)}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def run(name: str, arguments: Sequence[str] | None = None) -> None:
    """Runs a subcommand with these arguments, by default the process's, and ends the process with its exit code."""
    sys.argv = [f"depthmup {name}", *(sys.argv[1:] if arguments is None else arguments)]
    if name in _PRINTING and hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with _interruptible():
        module = importlib.import_module(COMMANDS[name][0])  # late: most import JAX
        from depthmup_flax import cli
    cli.run(module.main)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C during imports ends the process at once: an exception would end them in tracebacks. `cli.run` has more."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else the shell, or the caller, wants none or another
        signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupted(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


def usage() -> str:
    """The help of ``depthmup`` itself."""
    commands = "\n".join(f"  {name:11} {what}" for name, (_, what) in COMMANDS.items())
    return f"""\
depthmup: tune a small network once, train a deeper, wider one with the same hyperparameters.

{commands}

for example
{_EXAMPLES}

depthmup COMMAND --help explains a command."""


if __name__ == "__main__":
    main()
