"""The best rate of a large network, with its error, from runs of smaller ones.

    depthmup ladder RUNS.csv --target.width=N --target.depth=N [FLAG ...]

Examples:
    depthmup ladder runs.csv --target.width=512 --target.depth=24
    depthmup ladder runs.csv --width=n_embd --depth=n_layer --loss=val_loss --rate=lr \\
        --target.width=512 --target.depth=24

A row for each run of any trainer: width, depth, learning rate and loss; steps, batch size,
seed, parameters, rule and initial loss, if there are such columns. Columns are found by
usual names, or named by flags. Printed: the target's best rate, its 95 % interval and
what it costs on average, which run to add next, and the forecast of the loss.
"""

from __future__ import annotations

import argparse
import json
import pathlib

from depthmup_flax.commands.parser import Parser, names
from depthmup_flax.util.errors import InputError

COLUMNS = {  # flag -> role of `depthmup_flax.storage.run_tables.NAMES`
    **{name: name for name in ("width", "depth", "loss", "steps", "batch_size", "seed", "initial_loss")},
    "rate": "learning_rate",
}
_TARGET = ("width", "depth", "steps", "batch_size")


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_words()
    for name in _TARGET:
        parser.flag(f"--target.{name}", type=int, help=f"The target's {name}.")
    for flag, role in COLUMNS.items():
        parser.flag(f"--{flag}", help=f"Column of the {role.replace('_', ' ')}; default: one of a usual name.")
    parser.flag("--ignore", type=names, default=[], help="Columns in which equal runs differ, such as host,date.")
    parser.flag("--rule", help="Rule of the trainer: depth_mup, completep, mup or sp; default: the table's, or sp.")
    parser.flag("--optimizer", default="adam", help="For other steps or another batch size: adam, sgd, ...")
    parser.flag("--weight_decay", type=float, default=0.0, help="Of the runs: with it the rate stays for other steps.")
    parser.flag("--initial", type=float, help="The loss before learning, where the table does not have it.")
    parser.flag("--budget", type=float, default=0.1, help="Of one more size, in runs of the target.")
    parser.flag("--out", help="Directory of ladder.json and the figure; default: RUNS_ladder, beside the file.")
    parser.flag("--json", action="store_true", help="Print one JSON object.")


def main(args: argparse.Namespace) -> None:
    """Prints the ladder and writes its files."""
    from depthmup_flax.search.ladder.ladder import ladder

    if len(args.words) != 1:
        raise InputError("name one table of runs: depthmup ladder runs.csv --target.width=512 --target.depth=24.")
    for name in ("width", "depth"):
        if getattr(args, f"target_{name}") is None:
            raise InputError(f"target.{name} is not set: give the large network's, as --target.{name}=512.")
    path = pathlib.Path(args.words[0]).expanduser()
    found = ladder(
        path,
        (args.target_width, args.target_depth),
        steps=args.target_steps,
        batch_size=args.target_batch_size,
        rule=args.rule,
        optimizer=args.optimizer,
        weight_decay=args.weight_decay,
        initial_loss=args.initial,
        budget=args.budget,
        columns={role: name for flag, role in COLUMNS.items() if (name := getattr(args, flag)) is not None},
        ignored=args.ignore,
    )
    written = found.write(args.out or path.with_name(f"{path.name.partition('.')[0]}_ladder"))
    if args.json:
        print(json.dumps(found.as_json()))
        return
    print(found)
    print("\nwritten:", *written, sep="\n  ")
