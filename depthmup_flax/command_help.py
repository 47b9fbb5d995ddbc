"""The help of a command: its module's docstring, and its flags in between.

The docstring has paragraphs: what the command does, in a line; its form; ``Examples``; and what else to know. Whoever
reads the file and whoever types ``--help`` read the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from absl import flags

_SHARED = ("coordinator", "num_processes", "process_id", "traceback", "quiet", "help")  # last, and in this order
_WIDEST = 24  # of aligned flags; longer ones stick out
_FIELD = ("--config.FIELD=VALUE", "Set a field: depthmup config NAME explains them.")
_HELP = ("--help, -h", "Show this help and exit.")


def is_asked_for(words: Sequence[str]) -> bool:
    """Whether a command line asks for help instead of work."""
    options = words[: words.index("--")] if "--" in words else words
    return any(word in ("-h", "-help", "--help", "--helpshort", "--helpfull") for word in options)


def help_text(docstring: str, own_flags: Sequence[flags.Flag[Any]]) -> str:
    """The help of a command with these flags; ``--config`` is the first of them."""
    does, form, *others = docstring.strip().split("\n\n")
    position = {name: place for place, name in enumerate(("config", *(flag.name for flag in own_flags), *_SHARED))}
    rows = []
    for flag in sorted(own_flags, key=lambda flag: position[flag.name]):
        rows += [(shown(flag), str(flag.help))]
        rows += [_FIELD] if flag.name == "config" else []
    rows += [_HELP]
    width = max(len(name) for name, _ in rows if len(name) <= _WIDEST)
    table = "\n".join(f"  {name:{width}}  {text}" for name, text in rows)
    return "\n\n".join([does, form, f"Flags, with their defaults:\n{table}", *others])


def shown(flag: flags.Flag[Any]) -> str:
    """A flag with its default as one types it: ``--steps=10``, ``--workdir=...``, ``--overwrite``."""
    if flag.boolean:
        return f"--{'no' * bool(flag.default)}{flag.name}"
    default = ",".join(flag.default) if isinstance(flag.default, list) else flag.default
    return f"--{flag.name}={'...' if default in (None, '') else default}"
