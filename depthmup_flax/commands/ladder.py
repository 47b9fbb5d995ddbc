"""The best rate of a large network, with its error, from runs of smaller ones.

    depthmup ladder RUNS.csv --target.width=N --target.depth=N [FLAG ...]

Examples:
    depthmup ladder runs.csv --target.width=512 --target.depth=24
    depthmup ladder runs.csv --column.width=size --column.loss=nll --initial=10.8 \\
        --target.width=512 --target.depth=24

A row for each run of any trainer: width, depth, learning rate and loss; steps, batch size,
seed, parameters, rule, initial loss and state, if there are such columns. Columns are
found by usual names, or named by flags. Printed: the target's best rate, its 95 % interval and
what it costs on average, which run to add next, and the forecast of the loss.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

from depthmup_flax.commands.parser import Parser, columns
from depthmup_flax.util.errors import InputError

TARGET = ("width", "depth", "steps", "batch_size")


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_words()
    for name in TARGET:
        parser.flag(f"--target.{name}", type=int, help=f"The target's {name}.")
    parser.define_columns()
    parser.flag("--optimizer", default="adam", help="For other steps or another batch size: adam, sgd, ...")
    decay = "Of the runs, default the table's: with it the rate stays for other steps."
    parser.flag("--weight_decay", type=float, help=decay)
    parser.flag("--budget", type=float, default=0.1, help="Of one more size, in runs of the target.")
    parser.flag("--out", help="Directory of ladder.json and the figure; default: RUNS_ladder, beside the file.")
    parser.flag("--json", action="store_true", help="Print one JSON object.")


def main(args: argparse.Namespace) -> None:
    """Prints the ladder and writes its files."""
    options = {name: getattr(args, name) for name in ("optimizer", "weight_decay", "budget")}
    path, found = ladder_of(args, **options)
    written = found.write(args.out or path.with_name(f"{path.name.partition('.')[0]}_ladder"))
    if args.json:
        print(json.dumps(found.as_json()))
        return
    print(found)
    print("\nwritten:", *written, sep="\n  ")


def ladder_of(args: argparse.Namespace, **options: Any) -> tuple[pathlib.Path, Any]:
    """The table that a command names, and what it says about the target; `InputError` without one of the two."""
    from depthmup_flax.search.ladder.ladder import ladder

    if len(args.words) > 1:
        raise InputError(
            f"{len(args.words)} files are named: give one table of runs. Join them, with a column rule that tells them "
            "apart."
        )
    if not args.words:
        raise InputError("name one table of runs, such as runs.csv, with --target.width=512 --target.depth=24.")
    width, depth, steps, batch_size = (getattr(args, f"target_{name}") for name in TARGET)
    for name, size in (("width", width), ("depth", depth)):
        if size is None:
            raise InputError(f"target.{name} is not set: give the large network's, as --target.{name}=512.")
    path = pathlib.Path(args.words[0]).expanduser()
    return path, ladder(path, (width, depth), steps=steps, batch_size=batch_size, **columns(args), **options)
