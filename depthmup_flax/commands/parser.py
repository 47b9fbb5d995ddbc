"""The parser of a command's flags. Its help is the docstring of the command's module; its errors are sentences.

The docstring has paragraphs: what the command does, in one line; its usage; ``Examples``; further notes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from depthmup_flax.config import flags, shipped
from depthmup_flax.util.errors import InputError, closest

_FIELD = ("--config.FIELD=VALUE", "Set a field: depthmup config NAME explains them.")


class Parser(argparse.ArgumentParser):
    """Flags of one command, ``--name=value``, and with `define_words` other words.

    Args:
      docstring: of the command's module.
    """

    def __init__(self, docstring: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self._docstring = docstring
        self._default_config: str | None = None
        self.has_config = self.has_words = False
        self.flag("--quiet", action="store_true", help="Show only warnings, errors and the result.")

    def flag(self, name: str, **options: Any) -> None:
        """Adds a flag with options of `argparse`; the help shows its default."""
        self.add_argument(name, dest=name.removeprefix("--").replace(".", "_"), **options)

    def define_config(self, help_text: str, default: str | None = None) -> None:
        """Adds ``--config`` and ``--config.section.field``, parsed to a `flags.GivenConfig`."""
        self.has_config, self._default_config = True, default
        self.flag("--config", help=help_text, default=default)
        self.flag("--traceback", action="store_true", help="Show the calls behind an error.")

    def define_words(self) -> None:
        """Allows words that are not flags: ``words``."""
        self.has_words = True

    def define_processes(self) -> None:
        """Adds the flags of `depthmup_flax.devices.distributed.start`."""
        self.flag("--coordinator", help="With several processes: host:port of process 0.")
        self.flag("--num_processes", type=int, help="With several processes: their number.")
        self.flag("--process_id", type=int, help="With several processes: the number of this one, from 0.")

    def parsed(self, words: Sequence[str]) -> argparse.Namespace:
        """The flags of a command line; `InputError` for an unknown flag, a wrong value or an unexpected word."""
        if "=" in words:
            raise InputError("unexpected argument '=': write a flag without spaces, --name=value.")
        given, others = flags.split(words, self._default_config) if self.has_config else (None, list(words))
        end = others.index("--") if "--" in others else len(others)
        result, rest = self.parse_known_args(others[:end])
        for word in rest:
            if word.startswith("-") and word != "-":
                raise InputError(self._unknown("--" + word.partition("=")[0].lstrip("-"), given))
        result.config, result.words = given, rest + others[end + 1 :]
        if result.words and not self.has_words:
            word = result.words[0]
            is_config = self.has_config and shipped.is_config(word)
            hint = "this command takes none"
            if self.has_config:
                hint = (
                    f"a config is written --config={word}" if is_config else "flags are written --config.model.depth=24"
                )
            raise InputError(f"unexpected argument {word!r}: {hint}.")
        return result

    def error(self, message: str) -> NoReturn:
        """Raises `InputError` for a message of argparse."""
        match = re.match(r"argument (--[\w.]+): (.*)", message, re.DOTALL)
        if match is None:
            raise InputError(f"{message}.")
        name, problem = match.groups()
        action = self._option_string_actions[name]
        text = re.search(r"(?:value|choice|argument):? '(.*?)'(?: \(|$)", problem, re.DOTALL)
        if text is None:
            raise InputError(f"{name} has no value: write {name}=VALUE.")
        if not takes_value(action):
            raise InputError(f"{name} is {text[1]!r}: it takes no value. Write {name}.")
        if action.choices:
            raise InputError(f"{name} is {text[1]!r}: use {' or '.join(map(str, action.choices))}.")
        raise InputError(flags.wrong_value(name, text[1], action.type, action.default))  # type: ignore[arg-type]

    def _unknown(self, name: str, given: flags.GivenConfig | None) -> str:
        own = {option.lstrip("-"): option for option in self._option_string_actions}
        meant = own.get(closest(name.lstrip("-"), own) or "")
        if meant is None and given is not None and (field := _field_meant(name.lstrip("-"), given)):
            return f"unknown flag {name}: fields of the config are set by --config.{field}."
        return f"unknown flag {name}: {f'did you mean {meant!r}? ' if meant else ''}--help lists the flags."

    def format_help(self) -> str:
        """The docstring, with the flags after its first two paragraphs."""
        does, form, *others = self._docstring.strip().split("\n\n")
        rows = [(shown(action), str(action.help)) for action in self.ordered()]
        if self.has_config:
            rows.insert(1, _FIELD)
        rows.append(("--help, -h", "Show this help and exit."))
        width = max(len(name) for name, _ in rows if len(name) <= 24)  # longer ones stick out
        table = "\n".join(f"  {name:{width}}  {text}" for name, text in rows)
        return "\n\n".join([does, form, f"Flags, with their defaults:\n{table}", *others])

    def ordered(self) -> list[argparse.Action]:
        """The flags: ``--config``, those of the command, then those that commands share."""
        last = ("coordinator", "num_processes", "process_id", "traceback", "quiet")
        place = lambda name: -1 if name == "config" else last.index(name) + 1 if name in last else 0
        return sorted(self._actions, key=lambda action: place(action.dest))


def _field_meant(name: str, given: flags.GivenConfig) -> str | None:
    """The field of the given config that is closest to a name; ``None`` if none is, or the config cannot be read."""
    from depthmup_flax.config.fields import closest_field

    try:
        return closest_field(given.resolved(), name)
    except InputError:
        return None


def takes_value(action: argparse.Action) -> bool:
    """Whether a flag is written ``--name=value``."""
    return action.nargs != 0


def shown(action: argparse.Action) -> str:
    """A flag with its default as typed: ``--steps=10``, ``--workdir=...``, ``--overwrite``."""
    (name,) = action.option_strings
    if not takes_value(action):
        return name
    return f"{name}={'...' if action.default in (None, '', []) else action.default}"


def comma_separated(text: str) -> list[str]:
    """The parts of a flag's value: ``a,b`` has two."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(name: str, values: Sequence[str] | None) -> list[int] | None:
    """The numbers of a `comma_separated` flag; `InputError` for other values."""
    try:
        return None if values is None else [int(value) for value in values]
    except ValueError as error:
        given = ",".join(values or ())
        raise InputError(f"--{name} is {given}: use whole numbers with commas, as in --{name}=64,128,256.") from error


def is_help_asked_for(words: Sequence[str]) -> bool:
    """Whether a command line asks for help instead of work."""
    options = words[: words.index("--")] if "--" in words else words
    return any(word.partition("=")[0] in ("-h", "-help", "--help") for word in options)
