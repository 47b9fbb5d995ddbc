"""Flags of a config: ``--config=FILE.py`` and ``--config.section.field=value``."""

from __future__ import annotations

import ast
import dataclasses
import logging
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from depthmup_flax.util.errors import InputError

if TYPE_CHECKING:
    from ml_collections import ConfigDict

log = logging.getLogger(__name__)


@dataclasses.dataclass
class GivenConfig:
    """What a command line says about its config."""

    file: str | None  # with any :argument
    fields: dict[str, str]  # dotted field -> text
    is_default: bool = False  # whether the command line does not name the file
    _resolved: ConfigDict | None = None

    def path(self) -> str:
        """The config's file with any ``:argument``; `InputError` if none is named or it does not exist."""
        from depthmup_flax.config.files import NAME_A_CONFIG, path_of

        if self.file is None:
            raise InputError(f"--config is not set: {NAME_A_CONFIG}.")
        return path_of(self.file)

    def resolved(self) -> ConfigDict:
        """The config with the fields that the command line sets; `InputError` if any cannot be read or set."""
        from depthmup_flax.config.files import load

        if self._resolved is None:
            if self.is_default:
                log.info("--config=%s (the default; depthmup config lists the others)", self.file)
            config = load(self.path())
            # A model's name first, because it says which other fields there are.
            for path in sorted(self.fields, key=lambda path: path not in ("model.name", "base.model.name")):
                set_text(config, path, self.fields[path])
            train = config.get("base", config).get("train", {})
            if {"train.epochs", "base.train.epochs"} & self.fields.keys() and train.steps and train.epochs:
                raise InputError(f"train.epochs is {train.epochs:g}: train.steps, {train.steps}, replaces it. Use 0.")
            self._resolved = config
        return self._resolved


def split(words: Sequence[str], default: str | None) -> tuple[GivenConfig, list[str]]:
    """The config of a command line, and its other words. ``default`` is the file if it names none."""
    given: dict[str, str] = {}  # "" is the file
    others, remaining = [], iter(words)
    for word in remaining:
        name, equals, text = word.partition("=")
        if name != "--config" and not name.startswith("--config."):
            others.append(word)
            continue
        if not equals:
            text = next(remaining, "--")
            if text.startswith("--"):
                raise InputError(f"{word} has no value: write {word}=VALUE.")
        given[name.removeprefix("--config").removeprefix(".")] = text
    is_default = default is not None and "" not in given
    file, scale = given.pop("", default), given.pop("scale", None)
    return GivenConfig(f"{file}:{scale}" if file and scale else file, given, is_default), others


def set_text(config: ConfigDict, path: str, text: str) -> None:
    """Sets a field to the text of the command line, parsed as the field's type."""
    from ml_collections import ConfigDict

    from depthmup_flax.config.fields import TYPES, default_config, get_field, set_field, set_model, unknown_field

    run = config.base if path.startswith("base.") else config
    sections, _, name = path.rpartition(".")
    if path in ("model.name", "base.model.name"):
        return set_model(run, text)
    kind, present = float, 0.1
    try:
        if sections in ("hyper", "base.hyper"):  # of the user's step, which the config may not have yet
            with run.unlocked():
                run.hyper[name] = float(text)
            return None
        section = get_field(config, sections) if sections else config
        present, kind = section[name], section.get_type(name)
        if isinstance(present, ConfigDict):
            raise InputError(f"{path} is a section: set one of its fields, such as {path}.{next(iter(present), 'x')}.")
        if text == "None" and "model" in run:  # unsets what has no value by default, such as fields of the preset
            field = path.removeprefix("base.")
            if get_field(default_config(run.model.name), field) is None:
                return set_field(config, path, None)
        return set_field(config, path, _parsed(text, kind))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(unknown_field(config, path)) from error
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        expected, other = TYPES[kind]
        example = shlex.quote(other if present is None or present == () else str(present))
        raise InputError(f"{path} is {text!r}: use {expected}, such as {example}.") from error


def _parsed(text: str, kind: type) -> Any:
    """The value of a text: ``a``, ``a,b`` and Python's ``('a', 'b')`` are tuples; a field without a type takes any."""
    from ml_collections.config_flags import tuple_parser

    if kind is bool:
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else int(text) == 1
    if kind is tuple:
        found = tuple_parser.TupleParser().parse(text)
        return tuple(part.strip() for part in text.split(",")) if found == (text,) else found
    if kind in (int, float, str):
        return kind(text)
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
