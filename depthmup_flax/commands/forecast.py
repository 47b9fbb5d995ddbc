"""Forecast the loss of a large network from a ladder of small ones, or choose its sizes.

    depthmup forecast --config=TUNED [--target.FIELD=N ...] [FLAG ...]
    depthmup forecast --check=RUN --workdir=FORECAST
    depthmup forecast --config=TUNED --compute=TIMES [--ladder=FORECAST] [FLAG ...]

Examples:
    depthmup forecast --config=digits_deep --budget=10%
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
import json

from depthmup_flax.commands import start
from depthmup_flax.commands.parser import Parser, comma_separated, whole_numbers
from depthmup_flax.config import shipped
from depthmup_flax.devices.host import cache_compilations
from depthmup_flax.storage.records import OBJECTIVES
from depthmup_flax.util.errors import InputError

_TARGET = ("width", "depth", "steps", "batch_size")
_LADDER = ("widths", "depths", "steps")


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("Tuned hyperparameters: a shipped config or a Python file.")
    parser.flag("--workdir", help="Directory; default runs/forecast/ and the config's name.")
    for name in _TARGET:
        parser.flag(f"--target.{name}", type=int, help=f"The target's {name}; default: the config's.")
    parser.flag("--budget", help="Of the ladder, such as 5% of the target's operations.")
    parser.flag("--axes", type=comma_separated, help="The ladder varies these; default: width,depth.")
    for name in _LADDER:
        parser.flag(f"--{name}", type=comma_separated, help=f"{name.capitalize()} of the rungs, in place of a budget.")
    parser.flag("--seeds", type=int, default=3, help="Runs of each rung.")
    parser.flag(
        "--objective", default="auto", choices=("auto", *OBJECTIVES), help="The loss; auto: that which runs evaluate."
    )
    parser.flag("--lanes", default="auto", help="Runs at a time on a device: auto, all or a number.")
    parser.flag("--compute", type=float, help="Choose sizes for so many times the config's operations.")
    parser.flag("--ladder", help="With --compute: the --workdir of a forecast whose law chooses.")
    parser.flag("--check", help="Compare this run of the target with the forecast in --workdir.")
    parser.flag("--json", action="store_true", help="Print one JSON object.")


def main(args: argparse.Namespace) -> None:
    """Makes or checks a forecast, or chooses sizes."""
    if args.check is not None:
        from depthmup_flax.search.forecast.target_loss import read

        if not args.workdir:
            raise InputError("--workdir is not set: name the directory of the forecast, such as runs/forecast/digits.")
        checked = read(args.workdir).check(args.check)
        print(json.dumps(checked.as_json()) if args.json else checked)
    elif args.compute is not None:
        _choose_sizes(args)
    else:
        _forecast(args)


def _forecast(args: argparse.Namespace) -> None:
    start.one_device_per_core()
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.config.fields import validate
    from depthmup_flax.search.forecast.ladder import LadderPlan
    from depthmup_flax.search.forecast.target_loss import forecast
    from depthmup_flax.search.sweep.groups import parse_lanes
    from depthmup_flax.search.tune.search import derived_file, next_training
    from depthmup_flax.storage.files import as_path, write_atomically

    config = args.config.resolved()
    validate(config)
    sizes = {name: tuple(whole_numbers(name, getattr(args, name)) or ()) for name in _LADDER}
    plan = LadderPlan(budget=args.budget, axes=args.axes, seeds=args.seeds, **sizes)
    workdir = as_path(args.workdir or f"runs/forecast/{shipped.run_name(args.config.path())}")
    lanes = parse_lanes(args.lanes)
    cache_compilations()
    found, target = forecast(config, workdir, plan, **_targets(args), objective=args.objective, lanes=lanes)
    print(json.dumps(found.as_json()) if args.json else found)
    path = workdir / "target.py"
    text = derived_file(args.config.path(), target, repr(found), origin="the target of a forecast")
    write_atomically(path, text)
    next_training(path, "target")


def _choose_sizes(args: argparse.Namespace) -> None:
    from depthmup_flax.config.fields import validate
    from depthmup_flax.search.forecast.allocation import recipe
    from depthmup_flax.search.forecast.target_loss import read
    from depthmup_flax.search.tune.search import derived_file, next_training
    from depthmup_flax.storage.files import as_path, write_atomically

    config = args.config.resolved()
    validate(config)
    given = _targets(args)
    if given.pop("steps") is not None:
        raise InputError("--target.steps and --compute are both given: the steps use what the sizes leave.")
    chosen = recipe(config, args.compute, forecast=None if args.ladder is None else read(args.ladder), **given)
    print(chosen)
    path = as_path(args.workdir or f"runs/recipe/{shipped.run_name(args.config.path())}") / "recipe.py"
    text = derived_file(args.config.path(), chosen.config, repr(chosen), origin="at another compute")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    next_training(path, "run")


def _targets(args: argparse.Namespace) -> dict[str, int | None]:
    given = {name: getattr(args, f"target_{name}") for name in _TARGET}
    for name, value in given.items():
        if value is not None and value < 1:
            raise InputError(f"--target.{name} is {value}: use a whole number of at least 1.")
    return given
