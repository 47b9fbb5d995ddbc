"""List the shipped configs, explain the fields of one, or copy one.

    depthmup config [NAME [SECTION]] [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup config
    depthmup config digits optimizer
    depthmup config --copy digits my.py

NAME is a shipped config, such as digits or sweeps/vit, or your Python file.
Fields that differ from their default are marked *. For the runs of a sweep only
these are shown; depthmup config sweeps/digits base shows all.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import pathlib
import re
import shlex
import shutil
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from depthmup_flax.commands.parser import Parser
from depthmup_flax.config import field_comments, shipped
from depthmup_flax.util.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from ml_collections import ConfigDict

_GROUPS = {"": "train", "sweeps": "sweep"}  # of shipped configs, before "/" -> command
_START = "Start here. "  # how the docstrings of the first sweeps begin
_KINDS = ("", ": start here", ": the figures of the papers", ": beyond the papers")  # of configs; all but one of sweeps
_LEFT = 30  # columns of "name=value"
_LONG = 60  # columns of a value; longer tuples are abbreviated


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a config."""

    path: str  # dotted
    value: Any  # None: not set
    default: Any  # None: it has none, or is not set by default
    meaning: str
    if_unset: str = ""  # the value that is then used

    @property
    def changed(self) -> bool:
        """Whether its value differs from its default."""
        return self.value is not None and self.value != self.default

    @property
    def marked(self) -> bool:
        """Whether it is marked as changed: it has a default."""
        return self.changed and self.default is not None


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_words()
    parser.define_config("The same as NAME.")
    parser.flag("--copy", action="store_true", help="Copy the config to the file named second.")
    parser.flag("--presets", action="store_true", help="List the values of parametrization.preset.")


def main(args: argparse.Namespace) -> None:
    """Lists, explains or copies configs."""
    words = args.words
    if args.copy:
        if len(words) != 2:
            raise InputError("--copy needs a config and a new file: depthmup config --copy digits my.py.")
        print(copied(*words))
    elif args.presets:
        if words:
            raise InputError(f"unexpected argument {words[0]!r}: use --presets alone.")
        from depthmup_flax.rule.phase_diagram import WHICH_EXPONENT, describe_presets

        print(f"--config.parametrization.preset is one of\n\n{describe_presets()}\n")
        print(textwrap.fill(WHICH_EXPONENT, _columns()))
    elif not words and args.config.file is None:
        print(listing())
    else:
        if args.config.file is None:
            args.config.name(words.pop(0))
        if len(words) > 1:
            raise InputError(f"unexpected argument {words[1]!r}: name one config and one section.")
        print(explained(args.config.resolved(), args.config.path(), *words))


def listing() -> str:
    """The shipped configs by command and kind, each with the first line of its docstring."""
    blocks = []
    for group, command in _GROUPS.items():
        of_group = [name for name in shipped.names() if name.rpartition("/")[0] == group]
        summaries = {name: _summary(shipped.path_of(name)) for name in of_group}
        for kind in _KINDS:
            rows = {name: text.removeprefix(_START) for name, text in summaries.items() if _kind(group, text) == kind}
            blocks += [_block(f"depthmup {command} --config=NAME{kind}", rows)] if rows else []
    return "\n\n".join([*blocks, "depthmup config NAME explains one, depthmup config --copy NAME my.py copies it."])


def _block(heading: str, rows: Mapping[str, str]) -> str:
    """Names and texts under a heading; each fits a line."""
    width = max(map(len, rows))
    shorten = lambda text: textwrap.shorten(text, _columns() - width - 4, placeholder=" ...")
    return "\n".join([heading, *(f"  {name:{width}}  {shorten(text)}" for name, text in rows.items())])


def _kind(group: str, summary: str) -> str:
    """The one of `_KINDS` of a config."""
    if group != "sweeps":
        return _KINDS[0]
    of_paper = "TP6" in summary or "B24" in summary
    return _KINDS[1] if summary.startswith(_START) else _KINDS[2] if of_paper else _KINDS[3]


def copied(name: str, target: str) -> str:
    """Copies a config to a new file; returns what was written, and the next command."""
    source, path = pathlib.Path(shipped.path_of(name).partition(":")[0]), pathlib.Path(target)
    if path.suffix != ".py":
        raise InputError(f"the copy is {target!r}: use a name that ends in .py.")
    try:
        text = source.read_bytes()
        with path.open("xb") as file:
            file.write(text)
    except FileExistsError as error:
        raise InputError(f"{target} exists: choose another name, or delete it.") from error
    except OSError as error:
        raise InputError(f"{error.filename} cannot be used: {error.strerror}.") from error
    command = _GROUPS.get(name.rpartition("/")[0], "train")
    return f"written: {target}\nnext: depthmup {command} --config={target}"


def fields(config: ConfigDict) -> list[Field]:
    """The fields of the config of a run or a sweep."""
    return _of_sweep(config) if "grids" in config else _of_run(config)


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
        for name, text in texts.items():
            meanings.setdefault(f"{section}.{name}", text)
    position = {path: place for place, path in enumerate(meanings)}
    defaults, rule = default_config(config.model.name), make_parametrization(config)
    known = set(field_paths(defaults))
    result = []
    by_source = lambda path: (order.index(path.partition(".")[0]), position.get(path, len(position)))
    for path in sorted(field_paths(config), key=by_source):
        section, _, name = path.rpartition(".")
        of_preset = getattr(rule, name, None)
        unset = {
            "parametrization": f"the preset's {of_preset}" if of_preset is not None else "",
            "optimizer.kwargs": "optax's",
        }
        meaning = meanings.get(path) or meanings.get(section, "")  # of arguments that a config file adds
        default = get_field(defaults, path) if path in known else None
        result.append(Field(path, get_field(config, path), default, meaning, unset.get(section, "")))
    return result


def _meanings_of_model(name: str) -> dict[str, str]:
    from depthmup_flax.config.user_code import model_section
    from depthmup_flax.models import MODELS
    from depthmup_flax.models.base import ResidualNetwork
    from depthmup_flax.networks.named import is_import_path, resolve

    own = is_import_path(name)
    meanings: dict[str, str] = {}
    for base in reversed((ResidualNetwork if own else MODELS[name]).__mro__):
        meanings |= field_comments.of_docstring(base.__doc__ or "", "Attributes")
    if not own:
        return meanings
    sizes = {size: meanings[size] for size in ("width", "depth", "base_width", "base_depth")}
    of_every_model = field_comments.of_code(inspect.getsource(model_section))
    unexplained = {field: f"a field of {name}" for field in model_section(name)}
    return unexplained | sizes | of_every_model | field_comments.of_user(resolve(name, "model.name"))


def _of_sweep(config: ConfigDict) -> list[Field]:
    from depthmup_flax.config.fields import field_paths, get_field
    from depthmup_flax.search.sweep.grid import sweep_config

    meanings = field_comments.of_docstring(sweep_config.__doc__ or "", "Args")
    of_run = _of_run(config.base)
    meanings |= {f"grids.{grid}.{field.path}": field.meaning for grid in config.grids for field in of_run}
    own = [path for path in field_paths(config) if not path.startswith("base.")]
    own.sort(key=lambda path: path.startswith("grids."))
    fields_of_sweep = [Field(path, get_field(config, path), None, meanings.get(path, "")) for path in own]
    return fields_of_sweep + [dataclasses.replace(field, path=f"base.{field.path}") for field in of_run]


def explained(config: ConfigDict, path: str, section: str = "") -> str:
    """The fields of a config, or of a section, with values, defaults and explanations, as text."""
    known = fields(config)
    if section == "hyper" and not any(field.path.startswith("hyper.") for field in known):
        reads = "a training step of your own, dm.Task, may read some"
        return f"hyper has no fields: {reads}. Set one: --config.hyper.NAME=0.1"
    if section:
        shown = [field for field in known if f"{field.path}.".startswith(f"{section}.")]
        if not shown:
            raise InputError(f"{path} has no section or field {section!r}: {did_you_mean(section, _sections(known))}")
    else:
        shown = [field for field in known if field.changed or not field.path.startswith("base.")]
    lines = [] if section else [*textwrap.wrap(_summary(path), _columns()), ""]
    heading = None
    for field in shown:
        parts = field.path.split(".")
        depth = 2 if parts[0] == "grids" else len(parts) - 1
        if heading not in (None, parts[:depth]):
            lines.append("")
        if heading != parts[:depth] and depth:
            lines.append(".".join(parts[:depth]))
        heading = parts[:depth]
        lines += _lines(field, ".".join(parts[depth:]))
    marked = [field for field in shown if field.marked]
    example = (marked or shown[-1:])[0]
    typed = shlex.quote(str(example.value if example.value is not None else "VALUE"))
    lines += ["", *(["* differs from the default."] if marked else [])]
    lines.append(f"Set a field on the command line: --config.{example.path}={typed}")
    if not section and any(field.path.startswith("base.") for field in known):
        lines.append("All fields of the sweep's runs: depthmup config NAME base")
    return "\n".join(lines)


def _sections(known: list[Field]) -> set[str]:
    """``optimizer``, ``optimizer.kwargs``, ... and the fields themselves."""
    return {".".join(field.path.split(".")[:end]) for field in known for end in range(1, field.path.count(".") + 2)}


def _lines(field: Field, name: str) -> list[str]:
    """``* depth=16    (default 8) L, the number of residual blocks``, wrapped."""
    if field.value is None:
        left, note = name, f"(unset: {field.if_unset}) " if field.if_unset else "(unset) "
    else:
        left = f"{name}={_shown(field.value)}"
        note = f"(default {_shown(field.default)}) " if field.marked else ""
    rest = textwrap.wrap(note + first_sentence(field.meaning), _columns() - _LEFT) or [""]
    if len(left) > _LEFT - 4:
        rest.insert(0, "")
    first, *others = rest
    mark = "* " if field.marked else "  "
    return [f"{mark}{left:{_LEFT - 2}}{first}".rstrip(), *(" " * _LEFT + line for line in others)]


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


def _summary(path: str) -> str:
    """The first line of a config file's docstring; does not run the file."""
    file = pathlib.Path(path if pathlib.Path(path).is_file() else path.partition(":")[0])
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def _columns() -> int:
    return min(max(shutil.get_terminal_size().columns, 70), 120)
