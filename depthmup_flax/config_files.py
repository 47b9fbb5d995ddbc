"""Config files and the flags that set their fields: ``--config=FILE.py``, ``--config.section.field=value``.

A command line is parsed in two steps. `parse` takes the flags of the config out of it and leaves the others to absl;
`resolved` loads the file, whose errors it places by file and line, and sets the fields.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import logging
import os
import re
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from typing import Any, cast

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags import tuple_parser

from depthmup_flax import shipped_configs
from depthmup_flax.errors import InputError, closest

log = logging.getLogger(__name__)

flags.disclaim_key_flags()  # the flags belong to the command that calls `define_config`

SHOW_TRACEBACK = "traceback"  # a flag
_REMEDY = "name a shipped config, such as digits, or a Python file with get_config()"


@dataclasses.dataclass
class _Given:
    """What a command line says about its config."""

    file: str | None = None  # with any :argument
    is_default: bool = False  # the file, which the command line does not name
    scales: Sequence[str | None] = ()  # of --config.scale
    # Dotted field -> texts as typed, None for a flag without "=".
    fields: dict[str, list[str | None]] = dataclasses.field(default_factory=dict)
    config: ConfigDict | None = None  # once `resolved`


class _ConfigFlag(flags.Flag):
    """``--config``; `parse` takes it out of the command line, so that absl only prints its help."""

    def __init__(self, help_text: str, default: str | None) -> None:
        super().__init__(flags.ArgumentParser(), None, "config", default, help_text)
        self.given = _Given()


def define_config(help_text: str, default: str | None = None) -> flags.FlagHolder[Any]:
    """Defines ``--config``, a shipped config or a Python file, and a flag ``--config.section.field`` per field."""
    flags.DEFINE_bool(SHOW_TRACEBACK, False, "Show the calls behind an error in the config file.")
    return flags.DEFINE_flag(_ConfigFlag(help_text, default))


def parse(argv: Sequence[str]) -> list[str]:
    """Parses the flags of a command line, those of the config aside; returns its other words.

    Raises:
      InputError: an unknown flag, a flag without value or with one of another type, two configs.
    """
    if "=" in argv:
        raise InputError("'=' stands alone: write a flag without spaces around it, --name=value.")
    flags.FLAGS.set_gnu_getopt()  # flags may follow other words
    try:
        words = flags.FLAGS.read_flags_from_files(list(argv), force_gnu=True)
        if "config" in flags.FLAGS:
            flag = _flag()
            flag.given, words = _split(words, flag.default)
        _require_values(words)
        return flags.FLAGS(words)
    except flags.UnrecognizedFlagError as error:
        raise InputError(_unknown_flag(error.flagname)) from error
    except flags.IllegalFlagValueError as error:
        raise InputError(_illegal_value(str(error))) from error
    except flags.Error as error:
        raise InputError(f"{_one_line(error)}.") from error


def own_flags() -> list[flags.Flag]:
    """The flags of this command, without those of absl and other libraries, in the order of their definition."""
    modules = flags.FLAGS.flags_by_module_dict()
    ours = [module for module in modules if str(module).startswith("depthmup_flax") or module == sys.argv[0]]
    return [flag for module in ours for flag in modules[module]]


def resolved(flag: flags.FlagHolder[Any]) -> ConfigDict:
    """The config of `define_config`'s flag, with the fields that the command line sets.

    Raises:
      InputError: no config, an error in its file, no such field, or a value of another type.
    """
    del flag  # a command has one
    given = _given()
    if given.config is None:
        if given.is_default:
            log.info("--config=%s (the default; depthmup config lists the others)", given.file)
        given.config = load(config_path())
        for path, texts in given.fields.items():
            _set(given.config, path, texts)
    return given.config


def is_named() -> bool:
    """Whether the command line has ``--config``, or it has a default."""
    return _given().file is not None


def name(file: str) -> None:
    """Names the config, for a command that has it without ``--config=``."""
    _given().file = _with_scale([file], _given().scales)


def config_path() -> str:
    """The file that ``--config`` names, including any ``:argument``."""
    file = _given().file
    if file is None:
        raise InputError(f"--config is not set: {_REMEDY}.")
    return shipped_configs.path_of(file)


def overrides() -> dict[str, Any]:
    """Dotted field -> value, for the fields that the command line sets; of a config that is `resolved`."""
    from depthmup_flax.training.config import get_field

    given = _given()
    assert given.config is not None
    return {path: get_field(given.config, path) for path in given.fields}


def print_traceback(error: BaseException) -> None:
    """Prints what caused an error, if ``--traceback`` asks for it."""
    asked = SHOW_TRACEBACK in flags.FLAGS and flags.FLAGS.is_parsed() and flags.FLAGS[SHOW_TRACEBACK].value
    if asked and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)


def _flag() -> _ConfigFlag:
    return cast(_ConfigFlag, flags.FLAGS["config"])


def _given() -> _Given:
    return _flag().given


# The command line.

_OF_CONFIG = re.compile(r"--?(?P<no>no)?config(?:\.(?P<path>[^=]*))?(?:=(?P<text>.*))?", re.DOTALL)


def _split(argv: Sequence[str], default: str | None) -> tuple[_Given, list[str]]:
    """What the words say about the config, and the other words; ``default`` is the file if they name none."""
    others, words = list(argv[:1]), collections.deque(argv[1:])
    given: dict[str, list[str | None]] = collections.defaultdict(list)  # "" is the file
    while words:
        word = words.popleft()
        match = _OF_CONFIG.fullmatch(word)
        if word == "--":
            others += [word, *words]
            break
        if match is None or (match["no"] and not match["path"]):
            others.append(word)
            continue
        text = "False" if match["no"] else match["text"]
        if text is None and words and not words[0].startswith("--"):
            text = words.popleft()
        given[match["path"] or ""].append(text)
    scales, is_default = given.pop("scale", []), default is not None and "" not in given
    file = _with_scale(given.pop("", [] if default is None else [default]), scales)
    return _Given(file, is_default, scales, dict(given)), others


def _with_scale(files: Sequence[str | None], scales: Sequence[str | None]) -> str | None:
    """``--config=file.py --config.scale=gpu`` as ``file.py:gpu``: ``get_config`` takes the scale."""
    for flag, values in (("--config", files), ("--config.scale", scales)):
        if None in values:
            raise InputError(f"{flag} has no value: write it behind {flag}=.")
        if len(values) > 1:
            raise InputError(f"{flag} is given twice, as {values[0]!r} and {values[1]!r}: leave one out.")
    if not files or not scales:
        return files[0] if files else None
    if ":" in str(files[0]):
        raise InputError(f"--config={files[0]} has a scale already: leave --config.scale={scales[0]} out.")
    return f"{files[0]}:{scales[0]}"


def _require_values(argv: Sequence[str]) -> None:
    """absl would take the next flag for the value of one that has none."""
    for i, word in enumerate(argv[1:], 2):
        name, following = word.lstrip("-"), argv[i] if i < len(argv) else "--"
        if word == "--":
            return
        if not word.startswith("-") or name not in flags.FLAGS or flags.FLAGS[name].boolean:
            continue
        if following.startswith("--"):
            raise InputError(f"{word} has no value: write it behind {word}=.")


def _unknown_flag(name: str) -> str:
    from depthmup_flax.models import MODELS
    from depthmup_flax.training.config import default_config, field_paths

    known = {path: None for model in MODELS for path in field_paths(default_config(model))}
    fields = [path for path in known if path.rpartition(".")[2] == name.rpartition(".")[2]]
    if fields and "config" in flags.FLAGS:
        return f"unknown flag --{name}: fields of the config are set by --config.{fields[0]}."
    meant = closest(f"--{name}", [f"--{flag.name}" for flag in own_flags()])
    return f"unknown flag --{name}: {f'did you mean {meant!r}? ' if meant else ''}--help lists the flags."


_TYPES: dict[type, tuple[str, str]] = {  # what is expected, and an example
    int: ("a whole number", "8"),
    float: ("a number", "0.5"),
    str: ("a name", "name"),
    tuple: ("a tuple", "('a', 'b')"),
}


def _illegal_value(message: str) -> str:
    """The sentence for absl's ``flag --octaves=abc: invalid literal for int() with base 10: 'abc'``."""
    match = re.match(r"flag --([^=]+)=(.*?): ", message, re.DOTALL)
    if match is None or match[1] not in flags.FLAGS:
        return f"{_one_line(message)}."
    name, text = match.groups()
    flag = flags.FLAGS[name]
    if isinstance(flag, flags.EnumFlag):
        return f"--{name} is {text!r}: use {' or '.join(flag.parser.enum_values)}."
    kinds = {"int": int, "float": float, "bool": bool}
    return _wrong_value(f"--{name}", text, kinds.get(flag.flag_type(), str), flag.default)


def _wrong_value(flag: str, text: str, kind: type, example: Any) -> str:
    if kind is bool:
        return f"{flag} is {text!r}: use True or False."
    expected, other = _TYPES[kind]
    shown = other if example is None or example == () else str(example)
    return f"{flag} is {text!r}: use {expected}, such as {flag}={shlex.quote(shown)}."


# Fields.


def _set(config: ConfigDict, path: str, texts: Sequence[str | None]) -> None:
    """Sets a field to what the command line says, as a value of the field's type."""
    from depthmup_flax.training.config import get_field, set_field, unknown_field

    flag, (sections, _, name) = f"--config.{path}", path.rpartition(".")
    try:
        section = get_field(config, sections) if sections else config
        present = section[name]
    except (KeyError, TypeError) as error:
        raise InputError(unknown_field(config, path)) from error
    if isinstance(present, ConfigDict):
        raise InputError(f"{flag} is a section: set one of its fields, such as {flag}.{next(iter(present), 'field')}.")
    kind = section.get_type(name)
    if None in texts and kind is not bool:
        raise InputError(f"{flag} has no value: write it behind {flag}=.")
    try:
        if kind is tuple:  # several flags are its elements
            value: Any = tuple(part for text in texts for part in tuple_parser.TupleParser().parse(text))
        else:
            value = _PARSERS.get(kind, _literal)("True" if texts[-1] is None else texts[-1])
    except ValueError as error:
        raise InputError(_wrong_value(flag, str(texts[-1]), kind, present)) from error
    set_field(config, path, value)


def _literal(text: str) -> Any:
    """A Python literal, or else the text: for a field of no type."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


_PARSERS: dict[type, Callable[[str], Any]] = {
    int: flags.IntegerParser().parse,
    float: flags.FloatParser().parse,
    bool: flags.BooleanParser().parse,
    str: str,
}


# Config files.


def load(named: str) -> ConfigDict:
    """The locked config of ``FILE.py`` or ``FILE.py:argument``, whose argument ``get_config`` gets.

    Raises:
      InputError: the file cannot be read, or ``get_config`` fails or returns no config; with the user's file and line.
    """
    from depthmup_flax.training.config import from_file

    path, *arguments = named.split(":", 1)
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        shipped = path.removeprefix("configs/").removesuffix(".py")
        remedy = f"use --config={shipped}" if shipped in shipped_configs.names() else _REMEDY
        problem = "is a directory" if os.path.isdir(path) else "cannot be read"
        raise InputError(f"--config={named} {problem}: {remedy}.")
    try:
        config = from_file(path, *arguments)
    except (Exception, SystemExit) as error:
        if isinstance(error, InputError) and any(repr(argument) in str(error) for argument in arguments):
            raise  # the command line is wrong, not the file
        raise InputError(_placed(error, path)) from error
    if not isinstance(config, ConfigDict):
        returned = "None (is its return missing?)" if config is None else f"a value of type {type(config).__name__}"
        raise InputError(
            f"get_config() of {path} returns {returned}: return a config, such as "
            "depthmup_flax.training.config.default_config()."
        )
    return config.lock()


def _placed(error: BaseException, path: str) -> str:
    """A sentence about an error inside a config file, with the file and line of the innermost code of the user's."""
    if isinstance(error, SyntaxError) and os.path.isfile(error.filename or ""):
        return f"{_place(str(error.filename), error.lineno)}: {type(error).__name__}: {error.msg}."
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    place = _place(frames[-1].filename, frames[-1].lineno) if frames else ""
    if isinstance(error, InputError):
        return f"{place}: {error}" if place else str(error)
    text = _one_line(_of_config_dict(error) or f"{type(error).__name__}: {error}").rstrip(": .")
    return f"{place or path}: {text}{'' if text.endswith('?') else '.'} --{SHOW_TRACEBACK} shows the calls."


def _place(file: str, line: int | None) -> str:
    """``configs/my.py line 12``, relative to the working directory if it is below."""
    relative = os.path.relpath(file)
    shown = file if relative.startswith("..") else relative
    return f"{shown} line {line}" if line else shown


@functools.cache
def _is_users(file: str) -> bool:
    """Whether code is neither Python's, nor of a library, nor of this package, whose configs count as the user's."""
    package = os.path.dirname(os.path.abspath(__file__))
    if file.startswith(os.path.join(package, "configs", "")):
        return True
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not file.startswith(("<", package + os.sep, *(library + os.sep for library in libraries)))


def _of_config_dict(error: BaseException) -> str | None:
    """The text of ml_collections' error about a field that a config lacks."""
    if not isinstance(error, (AttributeError, KeyError)):
        return None
    if "ml_collections" not in traceback.extract_tb(error.__traceback__)[-1].filename:
        return None
    cause = error.args[0] if isinstance(error.args[0], KeyError) else error
    name, *hint = str(cause.args[0]).splitlines()  # 'dpth', then perhaps: Did you mean "depth" instead of "dpth"?
    return f"config has no field {name}. {' '.join(hint)}"


def _one_line(error: object) -> str:
    """A message of several lines as one, without its last period."""
    return " ".join(str(error).split()).rstrip(".")
