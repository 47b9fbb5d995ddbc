"""Print a script with which a shell completes commands, flags, configs and fields.

    depthmup completion bash|zsh|fish

Examples:
    depthmup completion bash > ~/.local/share/bash-completion/completions/depthmup
    depthmup completion zsh > "${fpath[1]}/_depthmup"
    depthmup completion fish > ~/.config/fish/completions/depthmup.fish

It completes in a new shell, and at once: the names are in the script. Write it
again after an upgrade. The bash script needs the package bash-completion to be
found; without it, add the script's path to ~/.bashrc: source PATH
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from depthmup_flax import cli, config_files, console, shipped_configs
from depthmup_flax.__main__ import COMMANDS
from depthmup_flax.errors import InputError, did_you_mean

# Command -> what comes before "/" in the names of the shipped configs that it takes; others take those of runs.
_GROUPS = {"sweep": ("sweeps",), "limits": ("limits",), "plan": ("", "sweeps"), "config": ("", "sweeps", "limits")}


@dataclasses.dataclass(frozen=True)
class Command:
    """What can follow a command."""

    name: str
    does: str
    flags: Sequence[tuple[str, bool, str]]  # --name, whether a value follows, help
    configs: Sequence[str]  # shipped ones
    fields: Sequence[str]  # dotted, of the config


def main(argv: list[str]) -> None:
    """Prints the script."""
    if len(argv) != 2:
        raise InputError("name one shell: depthmup completion bash, zsh or fish.")
    if argv[1] not in _SCRIPTS:
        raise InputError(f"no completion for {argv[1]!r}: {did_you_mean(argv[1], _SCRIPTS)}")
    print(_SCRIPTS[argv[1]](commands()))


def commands() -> list[Command]:
    """All commands. Replaces the flags of this process by those of the last one."""
    from depthmup_flax.models import MODELS
    from depthmup_flax.training.config import default_config, field_paths

    of_runs = list(dict.fromkeys(path for model in MODELS for path in field_paths(default_config(model))))
    result = []
    for name, (module, does) in COMMANDS.items():
        defined = [(f"--{flag.name}", not flag.boolean, str(flag.help)) for flag in _flags_of(module)]
        configs, fields = [], []
        if any(flag == "--config" for flag, _, _ in defined):
            groups = _GROUPS.get(name, ("",))
            configs = [config for config in shipped_configs.names() if config.rpartition("/")[0] in groups]
            fields = {"limits": ["scale"], "sweep": ["scale", *(f"base.{path}" for path in of_runs)]}.get(name, of_runs)
        result.append(Command(name, does, defined, configs, fields))
    return result


def _flags_of(module: str) -> list[flags.Flag[Any]]:
    """The flags that a command's module defines. Two commands may have the same names, absl has them once."""
    for flag in config_files.own_flags():
        delattr(flags.FLAGS, flag.name)
    sys.modules.pop(module, None)
    importlib.import_module(module)
    console.define_quiet()
    return config_files.own_flags()


def _words(command: Command) -> str:
    return " ".join(f"{flag}=" if takes_value else flag for flag, takes_value, _ in command.flags)


def _bash(commands: Sequence[Command]) -> str:
    cases = []
    for one in commands:
        extra = ["--config."] if one.fields else []
        cases.append(f"""\
        {one.name})
            flags="{" ".join([_words(one), "--help", *extra])}"
            configs="{" ".join(f"--config={name}" for name in one.configs)}"
            fields="{" ".join(f"--config.{path}=" for path in one.fields)}"
            others="{_arguments(one)}" ;;""")
    return f"""\
# bash completion of depthmup
_depthmup() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" flags= configs= fields= others= words= word head
    word="${{line##* }}"
    case "${{COMP_WORDS[1]}}" in
{chr(10).join(cases)}
    esac
    words="$others"
    case "$word" in
        --config.*) words="$fields" ;;
        --config=*) words="$configs" ;;
        -*) words="$flags" ;;
    esac
    [[ $COMP_CWORD -eq 1 ]] && words="{" ".join(one.name for one in commands)} --help --version"
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    head="${{word%"${{word##*[=:]}}"}}"  # bash replaces what follows = or :
    COMPREPLY=("${{COMPREPLY[@]#"$head"}}")
    [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *[=.] ]] && compopt -o nospace 2>/dev/null
    return 0
}}
complete -o default -F _depthmup depthmup"""


def _arguments(command: Command) -> str:
    """The words that a command takes besides flags and files."""
    if command.name == "config":
        return " ".join(shipped_configs.names())
    return " ".join(_SCRIPTS) if command.name == "completion" else ""


def _zsh(commands: Sequence[Command]) -> str:
    cases = []
    for one in commands:
        extra = ["--config."] if one.fields else []
        with_value = [f"{flag}=" for flag, takes_value, _ in one.flags if takes_value]
        alone = [flag for flag, takes_value, _ in one.flags if not takes_value]
        cases.append(f"""\
        {one.name})
            open=({" ".join([*with_value, *extra])})
            flags=({" ".join([*alone, "--help"])})
            configs=({" ".join(f"--config={name}" for name in one.configs)})
            fields=({" ".join(f"--config.{path}=" for path in one.fields)})
            others=({_arguments(one)}) ;;""")
    return f"""\
#compdef depthmup
_depthmup() {{
    local -a open flags configs fields others
    if (( CURRENT == 2 )); then
        compadd -- {" ".join(one.name for one in commands)} --help --version
        return
    fi
    case "${{words[2]}}" in
{chr(10).join(cases)}
    esac
    case "$PREFIX" in
        --config.*) compadd -S '' -- $fields ;;
        --config=*) compadd -- $configs; compset -P '*='; _files ;;
        --*=*) compset -P '*='; _files ;;
        -*) compadd -S '' -- $open; compadd -- $flags ;;
        *) compadd -- $others; _files ;;
    esac
}}
compdef _depthmup depthmup
[[ "$funcstack[1]" == _depthmup ]] && _depthmup "$@" """.rstrip()


def _fish(commands: Sequence[Command]) -> str:
    lines = ["# fish completion of depthmup"]
    for one in commands:
        lines.append(f"complete -c depthmup -f -n __fish_use_subcommand -a {one.name} -d {_quoted(one.does)}")
        start = f"complete -c depthmup -n '__fish_seen_subcommand_from {one.name}'"
        if words := _arguments(one):
            lines.append(f"{start} -a '{words}'")
        for flag, takes_value, text in one.flags:
            values = f" -a '{' '.join(one.configs)}'" if flag == "--config" else ""
            lines.append(f"{start} -l {flag[2:]}{' -r' * takes_value}{values} -d {_quoted(text)}")
        lines += [f"{start} -l config.{path} -x" for path in one.fields]
        lines.append(f"{start} -l help -d 'Show this help and exit.'")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}

if __name__ == "__main__":
    cli.run(main)
