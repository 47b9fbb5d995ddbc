"""Forecast the loss of a large network from a ladder of small ones.

    depthmup forecast --config=TUNED [--target.FIELD=N ...] [FLAG ...]
    depthmup forecast RUNS.csv --target.width=N --target.depth=N
    depthmup forecast --check=RUN --workdir=FORECAST

Examples:
    depthmup forecast --config=digits_deep --target.depth=32
    depthmup forecast --check=runs/large --workdir=runs/forecast/my

The config has tuned hyperparameters, such as the tuned.py of depthmup tune. The ladder
trains smaller networks with them, a law is fitted to their losses, and forecast.json has
the target's loss with a 95 % interval. Rerunning resumes. A table of runs of any trainer,
with several rates at each size, is a ladder, too; flags name its columns.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from depthmup_flax.commands.ladder import TARGET, ladder_of
from depthmup_flax.commands.parser import Parser, columns, lanes, numbers, one_device_per_core
from depthmup_flax.config.files import run_name
from depthmup_flax.devices.host import cache_compilations
from depthmup_flax.storage.sweep_records import OBJECTIVE_CHOICES
from depthmup_flax.util.errors import InputError

_LADDER = ("widths", "depths", "steps")


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("Tuned hyperparameters: a shipped config or a Python file.")
    parser.define_words()
    parser.flag("--workdir", help="Directory; default runs/forecast/ and the config's name.")
    for name in TARGET:
        parser.flag(f"--target.{name}", type=int, help=f"The target's {name}; default: the config's.")
    parser.flag("--budget", type=float, help="Of the ladder, such as 0.05 of the target's operations.")
    for name in _LADDER:
        parser.flag(f"--{name}", type=numbers, default=(), help=f"{name.capitalize()} of the rungs, not a budget.")
    parser.flag("--seeds", type=int, default=3, help="Runs of each rung.")
    compared = "The loss; auto: that which runs evaluate."
    parser.flag("--objective", default="auto", choices=OBJECTIVE_CHOICES, help=compared)
    parser.flag("--lanes", type=lanes, help="Runs at a time on a device: auto, which is the default, all or a number.")
    parser.define_columns()
    parser.flag("--check", help="Compare this run of the target with the forecast in --workdir.")
    parser.flag("--json", action="store_true", help="Print one JSON object.")


def main(args: argparse.Namespace) -> None:
    """Makes or checks a forecast."""
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.search.forecast.forecasting import forecast, read
    from depthmup_flax.search.forecast.ladder import LadderPlan
    from depthmup_flax.search.tune.tune_target import derived_file, next_training
    from depthmup_flax.storage.files import as_path, write_atomically

    if args.check is not None:
        if not args.workdir:
            raise InputError("--workdir is not set: name the directory of the forecast, such as runs/forecast/digits.")
        checked = read(args.workdir).check(args.check)
        print(json.dumps(dataclasses.asdict(checked)) if args.json else checked)
        return
    if args.words:
        of_table(args)
        return
    if given := columns(args):
        raise InputError(
            f"{', '.join(given)}: flags of a table, and none is named. Name it, as depthmup forecast runs.csv."
        )
    config = args.config.resolved()
    plan = LadderPlan(budget=args.budget, seeds=args.seeds, **{name: getattr(args, name) for name in _LADDER})
    target = {name: getattr(args, f"target_{name}") for name in TARGET}
    workdir = as_path(args.workdir or f"runs/forecast/{run_name(args.config.path())}")
    cache_compilations()
    one_device_per_core()
    found, large = forecast(config, workdir, plan, **target, objective=args.objective, lanes=args.lanes)
    print(json.dumps(dataclasses.asdict(found)) if args.json else found)
    path = workdir / "target.py"
    write_atomically(path, derived_file(args.config.path(), large, repr(found), origin="the target of a forecast"))
    next_training(path, "target")


def of_table(args: argparse.Namespace) -> None:
    """Prints the forecast from a table of runs."""
    from depthmup_flax.search.ladder.ladder import with_notes

    _, found = ladder_of(args)
    if found.forecast is None:
        raise InputError(with_notes(found.forecast_line, found.notes))
    if args.json:
        print(json.dumps(dataclasses.asdict(found.forecast)))
        return
    print(*found.forecast_lines, *(f"- {note}" for note in found.notes), sep="\n")
