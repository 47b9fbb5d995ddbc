"""The subcommands of ``depthmup``."""

from __future__ import annotations

import importlib
from types import ModuleType

from depthmup_flax.commands.parser import Parser

# Heading -> name -> what it does. Each is a module of this package with define(parser) and main(args).
GROUPS = {
    "everyday": {
        "train": "train one network",
        "tune": "tune a small network and write the config of the large one",
        "forecast": "the loss of a large network before it is trained, or its sizes for a budget",
        "sweep": "train a grid over learning rate, width, depth, seed, ...",
        "report": "a verdict, tables and figures of a sweep, or curves of training runs",
        "predict": "apply a trained network",
    },
    "verify": {
        "check": "the coordinate check: does a network follow the rule?",
        "plan": "memory and operations on devices that you do not have",
        "doctor": "what is installed and what is missing",
    },
    "configs and shell": {
        "config": "list the shipped configs; explain or copy one",
        "completion": "a script for the TAB key of bash, zsh, fish",
    },
}
COMMANDS = {name: does for group in GROUPS.values() for name, does in group.items()}


def module_and_parser(name: str) -> tuple[ModuleType, Parser]:
    """The module of a command, and the parser of its flags."""
    module = importlib.import_module(f"depthmup_flax.commands.{name.replace('-', '_')}")
    parser = Parser(module.__doc__ or "")
    module.define(parser)
    return module, parser
