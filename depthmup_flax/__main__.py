"""The command ``depthmup``: its subcommands, each a module with ``main`` that also runs as ``python -m``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

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
}
_EXAMPLES = """\
  depthmup train --config=digits
  depthmup sweep --config=sweeps/digits && depthmup report
  depthmup config"""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the subcommand that ``argv``, by default the process's, names first."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("--help", "-h", "help"):
        print(usage())
    elif name == "--version":
        print(f"depthmup-flax {_version()}")
    elif name in COMMANDS:
        run(name, arguments)
    else:
        print(f"error: depthmup has no command {printable(name)!r}: {did_you_mean(name, COMMANDS)}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def run(name: str, arguments: Sequence[str] | None = None) -> None:
    """Runs a subcommand with these arguments, by default the process's, and ends the process with its exit code."""
    sys.argv = [f"depthmup {name}", *(sys.argv[1:] if arguments is None else arguments)]
    module = importlib.import_module(COMMANDS[name][0])  # late: most import JAX
    from depthmup_flax import cli

    cli.run(module.main)


def usage() -> str:
    """The help of ``depthmup`` itself."""
    commands = "\n".join(f"  {name:9} {what}" for name, (_, what) in COMMANDS.items())
    return f"""\
depthmup: tune a small network once, train a deeper, wider one with the same hyperparameters.

{commands}

for example
{_EXAMPLES}

depthmup COMMAND --help explains a command."""


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("depthmup-flax")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    main()
