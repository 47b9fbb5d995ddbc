"""The flags of a command, and what commands do before their work: devices, processes, the default work directory.

The help of a command is the docstring of its module, then its flags.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from depthmup_flax.config import flags
from depthmup_flax.config.files import is_config, run_name
from depthmup_flax.devices.host import cpu_cores
from depthmup_flax.storage.run_tables import NAMES
from depthmup_flax.util.errors import InputError, closest


class Parser(argparse.ArgumentParser):
    """Flags of one command, ``--name=value``, and with `define_words` other words; errors are `InputError`."""

    def __init__(self, name: str, docstring: str) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(f"depthmup {name}", argparse.SUPPRESS, docstring, formatter_class=form, allow_abbrev=False)
        self._default_config: str | None = None
        self._has_config = self._has_words = False
        self.flag("--quiet", action="store_true", help="Show only warnings, errors and the result.")
        self.flag("--traceback", action="store_true", help="Show the calls behind an error.")

    def flag(self, name: str, **options: Any) -> None:
        """Adds a flag with options of `argparse`; the help shows its default."""
        if (default := options.get("default")) not in (None, []):
            options["help"] += f" Default: {default}."
        if "action" not in options:
            options["metavar"] = name.rpartition(".")[2].lstrip("-").upper()
        self.add_argument(name, dest=name.removeprefix("--").replace(".", "_"), **options)

    def define_config(self, help_text: str, default: str | None = None) -> None:
        """Adds ``--config`` and ``--config.section.field``, parsed to a `flags.GivenConfig`."""
        self._has_config, self._default_config = True, default
        self.flag("--config", help=help_text, default=default)
        self.flag("--config.FIELD", help="Set a field: depthmup config NAME explains them.")

    def define_words(self) -> None:
        """Allows words that are not flags: ``words``."""
        self._has_words = True

    def define_columns(self) -> None:
        """Adds the flags of a table of runs; see `columns`."""
        for role in NAMES:
            self.flag(f"--column.{role}", help="Column of a table, in place of one of a usual name.")
        self.flag("--ignore", type=names, default=[], help="Of a table: columns that are no settings, as host,date.")
        self.flag("--initial", type=float, help="Of a table: the loss before learning, where it is no column.")
        rules = "Of a table: its trainer's rule: depth_mup, completep, mup or sp; of several, the one to take."
        self.flag("--rule", help=rules)

    def parsed(self, words: Sequence[str]) -> argparse.Namespace:
        """The flags of a command line; `InputError` for an unknown flag, a wrong value or an unexpected word."""
        if self._has_config and "--help" not in words:
            given, others = flags.split(words, self._default_config)
        else:
            given, others = None, list(words)
        end = others.index("--") if "--" in others else len(others)
        result, rest = self.parse_known_args(others[:end])
        for word in rest:
            if word.startswith("-") and word != "-":
                raise InputError(self._unknown("--" + word.partition("=")[0].lstrip("-"), given))
        result.config, result.words = given, rest + others[end + 1 :]
        if result.words and not self._has_words:
            word = result.words[0]
            hint = "this command takes none"
            if self._has_config:
                form = f"a config is written --config={word}"
                hint = form if is_config(word) else "flags are written --config.model.depth=24"
            raise InputError(f"unexpected argument {word!r}: {hint}.")
        return result

    def error(self, message: str) -> NoReturn:
        """Raises `InputError` for a message of argparse."""
        raise InputError(f"{message.removeprefix('argument ')}. --help explains it.")

    def _unknown(self, name: str, given: flags.GivenConfig | None) -> str:
        from depthmup_flax.config.fields import closest_field

        own = {option.lstrip("-"): option for option in self._option_string_actions}
        meant = own.get(closest(name.lstrip("-"), own) or "")
        if meant is None and given is not None:
            try:
                if field := closest_field(given.resolved(), name.lstrip("-")):
                    return f"unknown flag {name}: fields of the config are set by --config.{field}."
            except InputError:  # the config cannot be read
                pass
        if meant is None:
            meant = next((option for part, option in own.items() if part.rpartition(".")[2] == name.lstrip("-")), None)
        return f"unknown flag {name}: {f'did you mean {meant!r}? ' if meant else ''}--help lists the flags."


def columns(args: argparse.Namespace) -> dict[str, Any]:
    """What `Parser.define_columns` was given, as `depthmup_flax.ladder` and `make_report` take it."""
    named = {role: name for role in NAMES if (name := getattr(args, f"column_{role}")) is not None}
    given = {"columns": named, "ignored": args.ignore, "initial_loss": args.initial, "rule": args.rule}
    return {name: value for name, value in given.items() if value not in ({}, [], None)}


def numbers(text: str) -> tuple[int, ...]:
    """The whole numbers of a flag's value: ``8,16`` has two."""
    return tuple(map(int, names(text)))


def names(text: str) -> list[str]:
    """The parts of a flag's value: ``a,b`` has two."""
    return [part.strip() for part in text.split(",") if part.strip()]


def lanes(text: str) -> int | None:
    """``lanes`` of `depthmup_flax.sweep`: ``auto`` is ``None``, ``all`` 0."""
    if text not in ("auto", "all") and int(text) < 1:
        raise ValueError
    return {"auto": None, "all": 0}[text] if text in ("auto", "all") else int(text)


def shard(text: str) -> tuple[int, int]:
    """``i/n``: part i of n, from 0."""
    index, _, count = text.partition("/")
    if int(index) not in range(int(count)):
        parts = max(1, int(count))
        raise argparse.ArgumentTypeError(f"{text} is no part: use 0/{parts} to {parts - 1}/{parts}")
    return int(index), int(count)


def one_device_per_core() -> None:
    """Gives JAX one CPU device per core, unless ``XLA_FLAGS`` sets their number; call before JAX starts."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        import jax

        jax.config.update("jax_num_cpu_devices", cpu_cores())


def workdir_of(args: argparse.Namespace, parent: str) -> str:
    """``--workdir``, by default ``parent`` and the name of the config, which is then printed."""
    if args.workdir:
        return args.workdir
    default = f"{parent}/{run_name(args.config.path())}"
    print(f"--workdir={default}", flush=True)
    return default
