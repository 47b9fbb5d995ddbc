"""The subcommands of ``depthmup``."""

from __future__ import annotations

import importlib
from types import ModuleType

from depthmup_flax.commands.parser import Parser

# Name -> what it does. Each is a module of this package with define(parser) and main(args).
COMMANDS = {
    "train": "train one network",
    "sweep": "train a grid over learning rate, width, depth, seed, ...",
    "report": "figures, tables and a verdict from a sweep",
    "tune": "tune a small network and write the config of the large one",
    "check": "the coordinate check: does a network follow the rule?",
    "predict": "apply a trained network",
    "plan": "memory, time and communication on devices that you do not have",
    "limits": "theory of infinite networks against trained ones",
    "config": "list the shipped configs; explain or copy one",
    "doctor": "what is installed and what is missing",
    "completion": "a script for the TAB key of bash, zsh, fish",
}


def module_and_parser(name: str) -> tuple[ModuleType, Parser]:
    """The module of a command, and the parser of its flags."""
    module = importlib.import_module(f"depthmup_flax.commands.{name}")
    parser = Parser(module.__doc__ or "")
    module.define(parser)
    return module, parser
