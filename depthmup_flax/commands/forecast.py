"""Forecast the loss of a large network from a ladder of small ones, before it is trained.

    depthmup forecast --config=TUNED [--target.FIELD=N ...] [FLAG ...]
    depthmup forecast --check=RUN --workdir=FORECAST

Examples:
    depthmup forecast --config=digits_deep --budget=10%
    depthmup forecast --config=my.py --target.width=512 --target.depth=32
    depthmup forecast --config=my.py --widths=16,32,64 --depths=2,4,8
    depthmup forecast --check=runs/large --workdir=runs/forecast/my

The config has tuned hyperparameters, such as the tuned.py of depthmup tune. The ladder
trains smaller networks with them, a law is fitted to their losses, and the target's
loss with a 95 % interval is registered in forecast.json, with date and hash, which is
never overwritten. Rerunning resumes. depthmup config digits explains the fields.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from depthmup_flax.commands import start
from depthmup_flax.commands.parser import Parser, comma_separated, whole_numbers
from depthmup_flax.config import shipped
from depthmup_flax.devices.process.compilation_cache import cache_compilations
from depthmup_flax.storage.records.table import OBJECTIVES
from depthmup_flax.util.errors import InputError

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from depthmup_flax.search.forecast.registered import Registered

_TARGET = ("width", "depth", "steps", "batch_size")
_LADDER = ("widths", "depths", "steps")
# Flags of a new forecast and their defaults.
_OF_NEW = {
    **dict.fromkeys((*(f"target_{name}" for name in _TARGET), "budget", "axes", *_LADDER)),
    **{"seeds": 3, "objective": "auto", "lanes": "auto"},
}
_ORIGIN = "the target of a registered forecast"


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("Tuned hyperparameters: a shipped config or a Python file.")
    parser.flag("--workdir", help="Directory; default runs/forecast/ and the config's name.")
    for name in _TARGET:
        parser.flag(f"--target.{name}", type=int, help=f"The target's {name}; default: the config's.")
    parser.flag("--budget", help="Of the ladder: 5% of the target's operations, or a time, such as 10min.")
    parser.flag("--axes", type=comma_separated, help="The ladder varies these; default: width,depth.")
    for name in _LADDER:
        parser.flag(f"--{name}", type=comma_separated, help=f"{name.capitalize()} of the rungs, in place of a budget.")
    parser.flag("--seeds", type=int, default=_OF_NEW["seeds"], help="Runs of each rung.")
    parser.flag(
        "--objective", default="auto", choices=("auto", *OBJECTIVES), help="The loss; auto: that which runs evaluate."
    )
    parser.flag("--lanes", default="auto", help="Runs at a time on a device: auto, all or a number.")
    parser.flag("--check", help="Compare this run of the target with the forecast in --workdir.")
    parser.flag("--json", action="store_true", help="Print one JSON object.")


def main(args: argparse.Namespace) -> None:
    """Registers or checks a forecast."""
    if args.check is not None:
        _check(args)
        return
    start.one_device_per_core()
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.config.fields import validate
    from depthmup_flax.search.forecast.ladder import LadderPlan
    from depthmup_flax.search.forecast.target_loss import forecast
    from depthmup_flax.search.sweep.groups import parse_lanes

    config = args.config.resolved()
    validate(config)
    sizes = {name: tuple(whole_numbers(name, getattr(args, name)) or ()) for name in _LADDER}
    plan = LadderPlan(budget=args.budget, axes=args.axes, seeds=args.seeds, **sizes)
    width, depth, steps, batch_size = (_target(name, getattr(args, f"target_{name}")) for name in _TARGET)
    lanes = parse_lanes(args.lanes)
    workdir = args.workdir or f"runs/forecast/{shipped.run_name(args.config.path())}"
    cache_compilations()
    registered, large = forecast(
        config,
        workdir,
        plan,
        width=width,
        depth=depth,
        steps=steps,
        batch_size=batch_size,
        objective=args.objective,
        lanes=lanes,
    )
    print(json.dumps(registered.as_json()) if args.json else registered)
    _write_target(args, registered, large)


def _check(args: argparse.Namespace) -> None:
    from depthmup_flax.search.forecast.registered import read
    from depthmup_flax.storage.workdir.directory import as_path

    given = ["config"] if args.config.file or args.config.fields else []
    given += [name.replace("_", ".", 1) for name, default in _OF_NEW.items() if getattr(args, name) != default]
    if given:
        raise InputError(f"--{given[0]} is of a new forecast, and --check reads a registered one: leave it out.")
    if not args.workdir:
        raise InputError("--workdir is not set: name the directory of the forecast, such as runs/forecast/digits.")
    checked = read(as_path(args.workdir)).check(args.check)
    print(json.dumps(checked.as_json()) if args.json else checked)


def _write_target(args: argparse.Namespace, registered: Registered, large: ConfigDict) -> None:
    """Writes the target's config beside the forecast."""
    from depthmup_flax.search.tune.search import derived_file, next_training
    from depthmup_flax.storage.workdir.files import write_atomically

    path = registered.path.with_name("target.py")
    place = "forecast" if registered.course else ""
    write_atomically(path, derived_file(args.config.path(), large, repr(registered), origin=_ORIGIN, place=place))
    next_training(path, "target")


def _target(name: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise InputError(f"--target.{name} is {value}: use a whole number of at least 1.")
    return value
