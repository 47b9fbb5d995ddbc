"""List the shipped configs, or explain the fields of one.

    depthmup config [NAME [SECTION]] [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup config
    depthmup config digits optimizer

NAME is a shipped config, such as digits or sweeps/vit, or your Python file.
Fields that differ from their default are marked *. For the runs of a sweep only
these are shown; depthmup config sweeps/digits base shows all.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import itertools
import re
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

from depthmup_flax.commands.parser import Parser
from depthmup_flax.config import field_comments
from depthmup_flax.config.files import path_of, shipped_names
from depthmup_flax.util.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from ml_collections import ConfigDict

_LEFT = 38  # columns of "name=value"
_LONG = 60  # columns of a value; longer tuples are abbreviated


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a config."""

    path: str  # dotted
    value: Any  # None: not set
    default: Any  # None: not set by default
    meaning: str
    if_unset: str = ""  # the value that is then used

    @property
    def changed(self) -> bool:
        """Whether its value differs from its default."""
        return self.value is not None and self.value != self.default


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_words()
    parser.define_config("The same as NAME.")


def main(args: argparse.Namespace) -> None:
    """Lists or explains configs."""
    words, given = args.words, args.config
    if not words and given.file is None:
        print(listing())
    else:
        given.file = given.file or words.pop(0)
        if len(words) > 1:
            raise InputError(f"unexpected argument {words[1]!r}: name one config and one section.")
        print(explained(given.resolved(), given.path(), *words))


def listing() -> str:
    """The shipped configs by command, each with the first line of its docstring; the sweeps to start with first."""
    blocks = []
    for command in ("train", "sweep"):
        names = [name for name in shipped_names() if name.startswith("sweeps/") == (command == "sweep")]
        rows = {name: field_comments.summary_of_file(path_of(name)) for name in names}
        width = max(map(len, rows))
        sorted_rows = sorted(rows.items(), key=lambda row: not row[1].startswith("Start here"))
        shorten = lambda text, most: textwrap.shorten(text, most, placeholder=" ...")
        lines = (f"  {name:{width}}  {shorten(text, _columns() - width - 4)}" for name, text in sorted_rows)
        blocks.append("\n".join([f"depthmup {command} --config=NAME", *lines]))
    return "\n\n".join([*blocks, "depthmup config NAME explains one, and names its file."])


def fields(config: ConfigDict) -> list[Field]:
    """The fields of the config of a run or a sweep."""
    from depthmup_flax.config.fields import field_paths, get_field
    from depthmup_flax.search.sweep.grid import sweep_config

    if "grids" not in config:
        return _of_run(config)
    meanings = field_comments.of_docstring(sweep_config, "Args")
    of_run = _of_run(config.base)
    meanings |= {f"grids.{grid}.{field.path}": field.meaning for grid in config.grids for field in of_run}
    own = [path for path in field_paths(config) if not path.startswith("base.")]
    own.sort(key=lambda path: path.startswith("grids."))
    values = {path: get_field(config, path) for path in own}
    of_sweep = [Field(path, value, value, meanings.get(path, "")) for path, value in values.items()]
    return of_sweep + [dataclasses.replace(field, path=f"base.{field.path}") for field in of_run]


def _of_run(config: ConfigDict) -> list[Field]:
    from depthmup_flax.config.fields import default_config, field_paths, get_field, make_parametrization
    from depthmup_flax.data import DataConfig
    from depthmup_flax.rule.parametrization import Parametrization

    sections = {
        "parametrization": field_comments.of_class(Parametrization),
        "model": _meanings_of_model(config.model.name),
        "data": field_comments.of_class(DataConfig),
    }
    meanings = field_comments.of_code(inspect.getsource(default_config))
    order = list(dict.fromkeys(path.partition(".")[0] for path in meanings))
    for section, texts in sections.items():
        meanings |= {f"{section}.{name}": text for name, text in texts.items() if f"{section}.{name}" not in meanings}
    position = {path: place for place, path in enumerate(meanings)}
    defaults, rule = default_config(config.model.name), make_parametrization(config)
    known, result = set(field_paths(defaults)), []
    by_source = lambda path: (order.index(path.partition(".")[0]), position.get(path, len(position)))
    for path in sorted(field_paths(config), key=by_source):
        section, _, name = path.rpartition(".")
        unset = {"parametrization": f"the preset's {getattr(rule, name, None)}", "optimizer.kwargs": "optax's"}
        meaning = meanings.get(path) or meanings.get(section, "")  # of arguments that a config file adds
        default = get_field(defaults, path) if path in known else None
        result.append(Field(path, get_field(config, path), default, meaning, unset.get(section, "")))
    return result


def _meanings_of_model(name: str) -> dict[str, str]:
    from depthmup_flax.config.fields import model_section
    from depthmup_flax.models import MODELS
    from depthmup_flax.models.base import ResidualNetwork
    from depthmup_flax.networks.import_paths import is_import_path, resolve

    own = is_import_path(name)
    meanings: dict[str, str] = {}
    for base in reversed((ResidualNetwork if own else MODELS[name]).__mro__):
        meanings |= field_comments.of_docstring(base, "Attributes") | field_comments.of_class(base)
    if not own:
        return meanings
    sizes = {size: meanings[size] for size in ("width", "depth", "base_width", "base_depth")}
    of_every_model = field_comments.of_code(inspect.getsource(model_section))
    unexplained = {field: f"a field of {name}" for field in model_section(name)}
    return unexplained | sizes | of_every_model | field_comments.of_user(resolve(name, "model.name"))


def explained(config: ConfigDict, path: str, section: str = "") -> str:
    """The fields of a config, or of a section, with values, defaults and explanations, as text."""
    known = fields(config)
    if section:
        shown = [field for field in known if f"{field.path}.".startswith(f"{section}.")]
        if not shown:
            sections = {field.path.rpartition(".")[0] for field in known}
            raise InputError(f"{path} has no section {section!r}: {did_you_mean(section, sections - {''})}")
    else:
        shown = [field for field in known if field.changed or not field.path.startswith("base.")]
    lines = (
        [] if section else [*textwrap.wrap(field_comments.summary_of_file(path.partition(":")[0]), _columns()), path]
    )
    for _, of_section in itertools.groupby(shown, key=lambda field: field.path.rpartition(".")[0]):
        lines += ["", *(line for field in of_section for line in _lines(field))]
    lines += ["", "* differs from the default. Set a field on the command line: --config.FIELD=VALUE"]
    return "\n".join(lines).removeprefix("\n")


def _lines(field: Field) -> list[str]:
    """``* model.depth=16    (default 8) L, the number of residual blocks``, wrapped."""
    if field.value is None:
        left, note = field.path, f"(unset: {field.if_unset}) " if field.if_unset else "(unset) "
    else:
        left = f"{field.path}={_shown(field.value)}"
        note = f"(default {_shown(field.default)}) " if field.changed and field.default is not None else ""
    rest = textwrap.wrap(note + first_sentence(field.meaning), _columns() - _LEFT) or [""]
    if len(left) > _LEFT - 4:
        rest.insert(0, "")
    first, *others = rest
    return [f"{'* ' if field.changed else '  '}{left:{_LEFT - 2}}{first}".rstrip(), *(" " * _LEFT + x for x in others)]


def _shown(value: Any) -> str:
    """A value as typed after ``=``; the ends of a long tuple."""
    text = str(value)
    if isinstance(value, tuple) and len(text) > _LONG:
        return f"({value[0]}, {value[1]}, ..., {value[-1]}), {len(value)} values"
    return text or "''"


def first_sentence(text: str) -> str:
    """The first sentence of an explanation, without its period and backquotes."""
    sentence = re.split(r"(?<=\.)(?<!App\.|Def\.|Fig\.)\s+(?=[A-Z`])", text, maxsplit=1)[0]
    without_references = re.sub(r" \(`depthmup_flax[^)]*\)", "", sentence).replace("`", "")
    return without_references if sentence.endswith("...") else without_references.removesuffix(".")


def _columns() -> int:
    return min(max(shutil.get_terminal_size().columns, 70), 120)
