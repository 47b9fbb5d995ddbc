"""Forecast the loss of a large network from a ladder of small ones, or choose its sizes.

    depthmup forecast --config=TUNED [--target.FIELD=N ...] [FLAG ...]
    depthmup forecast --check=RUN --workdir=FORECAST
    depthmup forecast --config=TUNED --compute=TIMES [FLAG ...]

Examples:
    depthmup forecast --config=digits_deep --target.depth=32
    depthmup forecast --check=runs/large --workdir=runs/forecast/my
    depthmup forecast --config=digits --compute=16

The config has tuned hyperparameters, such as the tuned.py of depthmup tune. The ladder
trains smaller networks with them, a law is fitted to their losses, and forecast.json has
the target's loss with a 95 % interval. Rerunning resumes.
With --compute=64 nothing is trained: recipe.py is the config of a run of 64 times the
operations, with sizes and hyperparameters chosen together.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from typing import TYPE_CHECKING

from depthmup_flax.commands.parser import Parser, lanes, numbers, one_device_per_core
from depthmup_flax.config.files import run_name
from depthmup_flax.devices.host import cache_compilations
from depthmup_flax.storage.sweep_records import OBJECTIVES
from depthmup_flax.util.errors import InputError

if TYPE_CHECKING:
    from ml_collections import ConfigDict

_TARGET = ("width", "depth", "steps", "batch_size")
_LADDER = ("widths", "depths", "steps")


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("Tuned hyperparameters: a shipped config or a Python file.")
    parser.flag("--workdir", help="Directory; default runs/forecast/, or runs/recipe/, and the config's name.")
    for name in _TARGET:
        parser.flag(f"--target.{name}", type=int, help=f"The target's {name}; default: the config's, or chosen.")
    parser.flag("--budget", type=float, help="Of the ladder, such as 0.05 of the target's operations.")
    for name in _LADDER:
        parser.flag(f"--{name}", type=numbers, default=(), help=f"{name.capitalize()} of the rungs, not a budget.")
    parser.flag("--seeds", type=int, default=3, help="Runs of each rung.")
    compared = "The loss; auto: that which runs evaluate."
    parser.flag("--objective", default="auto", choices=("auto", *OBJECTIVES), help=compared)
    parser.flag("--lanes", type=lanes, help="Runs at a time on a device: auto, which is the default, all or a number.")
    parser.flag("--compute", type=float, help="Choose sizes for so many times the config's operations.")
    parser.flag("--check", help="Compare this run of the target with the forecast in --workdir.")
    parser.flag("--json", action="store_true", help="Print one JSON object.")


def main(args: argparse.Namespace) -> None:
    """Makes or checks a forecast, or chooses sizes."""
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.search.forecast.allocation import recipe
    from depthmup_flax.search.forecast.forecasting import forecast, read
    from depthmup_flax.search.forecast.ladder import LadderPlan
    from depthmup_flax.storage.files import as_path

    if args.check is not None:
        if not args.workdir:
            raise InputError("--workdir is not set: name the directory of the forecast, such as runs/forecast/digits.")
        checked = read(args.workdir).check(args.check)
        print(json.dumps(dataclasses.asdict(checked)) if args.json else checked)
        return
    config, target = args.config.resolved(), {name: getattr(args, f"target_{name}") for name in _TARGET}
    name, at_sizes = run_name(args.config.path()), {name: getattr(args, name) for name in _LADDER}
    cache_compilations()
    if args.compute is not None:
        if target.pop("steps") is not None:
            raise InputError("--target.steps and --compute are both given: the steps use what the sizes leave.")
        chosen = recipe(config, args.compute, **target)
        print(chosen)
        path = as_path(args.workdir or f"runs/recipe/{name}") / "recipe.py"
        _write_config(args, path, chosen.config, repr(chosen), "at another compute", "run")
    else:
        one_device_per_core()
        plan = LadderPlan(budget=args.budget, seeds=args.seeds, **at_sizes)
        workdir = as_path(args.workdir or f"runs/forecast/{name}")
        found, large = forecast(config, workdir, plan, **target, objective=args.objective, lanes=args.lanes)
        print(json.dumps(dataclasses.asdict(found)) if args.json else found)
        _write_config(args, workdir / "target.py", large, repr(found), "the target of a forecast", "target")


def _write_config(
    args: argparse.Namespace, path: pathlib.Path, config: ConfigDict, summary: str, origin: str, run: str
) -> None:
    from depthmup_flax.search.tune.target import derived_file, next_training
    from depthmup_flax.storage.files import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, derived_file(args.config.path(), config, summary, origin=origin))
    next_training(path, run)
