"""Print a script with which a shell completes commands, flags, configs and fields.

    depthmup completion bash|zsh|fish

Examples:
    depthmup completion bash > ~/.local/share/bash-completion/completions/depthmup
    depthmup completion zsh > "${fpath[1]}/_depthmup"
    depthmup completion fish > ~/.config/fish/completions/depthmup.fish

New shells use it. bash finds the script if the package bash-completion is
installed; otherwise add to ~/.bashrc: source PATH
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence

from depthmup_flax.commands.parser import Parser, takes_value
from depthmup_flax.commands.table import COMMANDS, module_and_parser
from depthmup_flax.config import shipped
from depthmup_flax.util.errors import InputError, did_you_mean

SHELLS = ("bash", "zsh", "fish")
# Command -> groups of shipped configs that it takes, the part before "/"; others take those of runs.
_GROUPS = {"sweep": ("sweeps",), "plan": ("", "sweeps"), "config": ("", "sweeps")}


def define(parser: Parser) -> None:
    """Takes the name of a shell."""
    parser.define_words()


def main(args: argparse.Namespace) -> None:
    """Prints the script."""
    import argcomplete

    if len(args.words) != 1:
        raise InputError("name one shell: depthmup completion bash, zsh or fish.")
    if args.words[0] not in SHELLS:
        raise InputError(f"no completion for {args.words[0]!r}: {did_you_mean(args.words[0], SHELLS)}")
    print(argcomplete.shellcode(["depthmup"], shell=args.words[0]))


def offer() -> None:
    """Answers a shell that asks for completions, and ends the process."""
    import argcomplete

    line = os.environ["COMP_LINE"]
    words = line.split()
    asked = words[1] if len(words) > 2 or (len(words) == 2 and line.endswith(" ")) else ""
    fields = _fields(asked, _models(line)) if "--config." in words[-1] else []
    argcomplete.autocomplete(_completed_parser(asked, fields), always_complete_options=True)


def _completed_parser(asked: str, fields: Sequence[str]) -> argparse.ArgumentParser:
    """A parser of the commands, with the flags of the command that is typed."""
    top = argparse.ArgumentParser(prog="depthmup", allow_abbrev=False)
    top.add_argument("--version", action="store_true")
    commands = top.add_subparsers()
    for name, does in COMMANDS.items():
        one = commands.add_parser(name, help=does)
        if name == asked:
            _add_flags(one, name, fields)
    return top


def _add_flags(parser: argparse.ArgumentParser, name: str, fields: Sequence[str]) -> None:
    of_command = module_and_parser(name)[1]
    configs = [config for config in shipped.names() if config.rpartition("/")[0] in _GROUPS.get(name, ("",))]
    for action in of_command.ordered():
        options = {} if takes_value(action) else {"action": "store_true"}
        added = parser.add_argument(*action.option_strings, help=action.help, **options)  # type: ignore[arg-type]
        if action.dest == "config":
            added.completer = lambda **_: configs  # type: ignore[attr-defined]
    if of_command.has_config:
        parser.add_argument("--config.", help="a field of the config")
    for path in fields:
        parser.add_argument(f"--config.{path}", help="")
    if of_command.has_words:
        words = parser.add_argument("words", nargs="*")
        if name in ("config", "completion"):
            words.completer = lambda **_: configs if name == "config" else SHELLS  # type: ignore[attr-defined]


def _models(line: str) -> list[str]:
    """The model that a command line names, if it can be imported; else all of ours."""
    from depthmup_flax.config.user_code import model_section
    from depthmup_flax.models import MODELS
    from depthmup_flax.util.errors import UserCodeError

    named = re.findall(r"--config\.(?:base\.)?model\.name[= ](\S+)", line)
    try:
        model_section(named[-1])
    except (IndexError, InputError, UserCodeError):
        return list(MODELS)
    return named[-1:]


def _fields(name: str, models: Sequence[str]) -> list[str]:
    from depthmup_flax.config.fields import default_config, field_paths

    of_runs = list(dict.fromkeys(path for model in models for path in field_paths(default_config(model))))
    return {"sweep": ["scale", *(f"base.{path}" for path in of_runs)]}.get(name, of_runs)
