"""Flags of a config: ``--config=FILE.py`` and ``--config.section.field=value``.

`split` extracts them from a command line; `GivenConfig.resolved` loads the file and sets the fields.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import logging
import re
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from depthmup_flax.config import shipped
from depthmup_flax.util.errors import InputError

if TYPE_CHECKING:
    from ml_collections import ConfigDict

log = logging.getLogger(__name__)


@dataclasses.dataclass
class GivenConfig:
    """What a command line says about its config."""

    file: str | None = None  # with any :argument
    is_default: bool = False  # whether the command line does not name the file
    scale: str | None = None  # of --config.scale
    # Dotted field -> texts as typed; None for a flag without "=".
    fields: dict[str, list[str | None]] = dataclasses.field(default_factory=dict)
    _resolved: ConfigDict | None = None

    def name(self, file: str) -> None:
        """Sets the file, for a command that takes it without ``--config=``."""
        self.file = file
        self._add_scale()

    def path(self) -> str:
        """The config's file with any ``:argument``; `InputError` if none is named or it does not exist."""
        from depthmup_flax.config.files import NAME_A_CONFIG

        if self.file is None:
            raise InputError(f"--config is not set: {NAME_A_CONFIG}.")
        return shipped.path_of(self.file)

    def resolved(self) -> ConfigDict:
        """The config with the fields that the command line sets; `InputError` if any cannot be read or set."""
        from depthmup_flax.config.files import load

        if self._resolved is None:
            if self.is_default:
                log.info("--config=%s (the default; depthmup config lists the others)", self.file)
            config = load(self.path())
            # A model's name first, because it says which other fields there are.
            for path in sorted(self.fields, key=lambda path: path not in ("model.name", "base.model.name")):
                _set(config, path, self.fields[path])
            self._require_epochs(config)
            self._resolved = config
        return self._resolved

    def overrides(self) -> dict[str, Any]:
        """Dotted field -> value for the fields that the command line sets."""
        from depthmup_flax.config.fields import get_field

        config = self.resolved()
        return {path: get_field(config, path) for path in self.fields}

    def _require_epochs(self, config: ConfigDict) -> None:
        """Raises `InputError` for epochs that steps replace."""
        for path in {"train.epochs", "base.train.epochs"} & self.fields.keys():
            of_steps = path.replace("epochs", "steps")
            train = config.base.train if path.startswith("base.") else config.train
            if train.steps and train.epochs:
                unused = f"--config.{path} is {train.epochs:g}, and is not used"
                raise InputError(
                    f"{unused}: {of_steps} is {train.steps}, which replaces it. Add --config.{of_steps}=0."
                )

    def _add_scale(self) -> None:
        """``--config=file.py --config.scale=gpu`` means ``file.py:gpu``."""
        if self.file is None or self.scale is None:
            return
        if ":" in self.file:
            raise InputError(f"--config={self.file} has a scale already: remove --config.scale={self.scale}.")
        self.file = f"{self.file}:{self.scale}"


_OF_CONFIG = re.compile(r"--?(?P<no>no)?config(?:\.(?P<path>[^=]*))?(?:=(?P<text>.*))?", re.DOTALL)


def split(words: Sequence[str], default: str | None) -> tuple[GivenConfig, list[str]]:
    """The config of a command line, and its other words. ``default`` is the file if it names none."""
    others, remaining = [], collections.deque(words)
    given: dict[str, list[str | None]] = collections.defaultdict(list)  # "" is the file
    while remaining:
        word = remaining.popleft()
        match = _OF_CONFIG.fullmatch(word)
        if word == "--":
            others += [word, *remaining]
            break
        if match is None or (match["no"] and not match["path"]):
            others.append(word)
            continue
        text = "False" if match["no"] else match["text"]
        if text is None and remaining and not remaining[0].startswith("--"):
            text = remaining.popleft()
        given[match["path"] or ""].append(text)
    is_default = default is not None and "" not in given
    scale, file = _single("--config.scale", given.pop("scale", [])), _single("--config", given.pop("", []))
    result = GivenConfig(default if is_default else file, is_default, scale, dict(given))
    result._add_scale()
    return result, others


def _single(flag: str, values: Sequence[str | None]) -> str | None:
    if None in values:
        raise InputError(f"{flag} has no value: write {flag}=VALUE.")
    if len(values) > 1:
        raise InputError(f"{flag} is given twice, as {values[0]!r} and {values[1]!r}: remove one.")
    return values[0] if values else None


# Type -> what to use, and an example.
TYPES: dict[type, tuple[str, str]] = {
    int: ("a whole number", "8"),
    float: ("a number", "0.5"),
    str: ("a name", "name"),
    tuple: ("a tuple", "('a', 'b')"),
}


def wrong_value(flag: str, text: str, kind: type, example: Any) -> str:
    """The error about a flag whose text is not of type ``kind``, with an example."""
    if kind is bool:
        return f"{flag} is {text!r}: use True or False."
    expected, other = TYPES[kind]
    shown = other if example is None or example == () else str(example)
    return f"{flag} is {text!r}: use {expected}, such as {flag}={shlex.quote(shown)}."


def _set(config: ConfigDict, path: str, texts: Sequence[str | None]) -> None:
    """Sets a field to the text of the command line, parsed as the field's type."""
    from ml_collections import ConfigDict

    from depthmup_flax.config.fields import get_field, set_field, set_model, unknown_field

    flag, (sections, _, name) = f"--config.{path}", path.rpartition(".")
    if path in ("model.name", "base.model.name"):
        return set_model(config.base if path.startswith("base.") else config, str(texts[-1]))
    if sections in ("hyper", "base.hyper") and sections.partition(".")[0] in config:
        return _set_hyper(get_field(config, sections), flag, name, texts)
    try:
        section = get_field(config, sections) if sections else config
        present = section[name]
    except (KeyError, TypeError) as error:
        raise InputError(unknown_field(config, path)) from error
    if isinstance(present, ConfigDict):
        naming = [field for field in ("name", "preset") if field in present and texts != [None]]
        example = f"{naming[0]}={shlex.quote(str(texts[-1]))}" if naming else next(iter(present), "field")
        raise InputError(f"{flag} is a section: set one of its fields, such as {flag}.{example}.")
    if texts == ["None"] and _is_unset_by_default(config, path):
        return set_field(config, path, None)
    kind = section.get_type(name)
    if None in texts and kind is not bool:
        raise InputError(f"{flag} has no value: write {flag}=VALUE.")
    try:
        if kind is tuple:  # several flags are its elements
            value: Any = tuple(part for text in texts for part in _tuple(str(text)))
        else:
            value = _PARSERS.get(kind, _literal)("True" if texts[-1] is None else texts[-1])
    except ValueError as error:
        raise InputError(wrong_value(flag, str(texts[-1]), kind, present)) from error
    set_field(config, path, value)


def _set_hyper(section: ConfigDict, flag: str, name: str, texts: Sequence[str | None]) -> None:
    """Sets a hyperparameter of the user's step, which the config may not have yet."""
    try:
        value = float(str(texts[-1]))
    except ValueError as error:
        raise InputError(wrong_value(flag, str(texts[-1]), float, 0.1)) from error
    with section.unlocked():
        section[name] = value


def _is_unset_by_default(config: ConfigDict, path: str) -> bool:
    """Whether a field without a value is one that has none, such as those of the preset."""
    from depthmup_flax.config.fields import default_config, get_field

    run, field = (config.base, path.removeprefix("base.")) if path.startswith("base.") else (config, path)
    if "model" not in run:
        return False
    try:
        return get_field(default_config(run.model.name), field) is None
    except (KeyError, TypeError):
        return False


def _tuple(text: str) -> tuple[Any, ...]:
    """The elements of ``a``, of ``a,b`` and of Python's ``('a', 'b')``."""
    from ml_collections.config_flags import tuple_parser

    found = tuple_parser.TupleParser().parse(text)
    return tuple(part.strip() for part in text.split(",")) if found == (text,) else found


def _literal(text: str) -> Any:
    """A Python literal, else the text; for a field without a type."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "t", "1", "false", "f", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "t", "1")


_PARSERS: dict[type, Callable[[str], Any]] = {int: int, float: float, bool: _bool, str: str}
