"""Choose width, depth, batch size, steps and hyperparameters together for a compute budget.

    depthmup recipe --config=TUNED --compute=TIMES [--forecast=FORECAST] [FLAG ...]

Examples:
    depthmup recipe --config=digits_deep --compute=16
    depthmup recipe --config=my.py --compute=64 --depth=12
    depthmup recipe --config=my.py --compute=64 --forecast=runs/forecast/my

The config has tuned hyperparameters, at the size and steps at which they were tuned.
--compute=64 is a run of 64 times its parameters times examples. --width, --depth and
--batch_size fix a field, and the others follow. With the --workdir of a forecast of
this config, the law of its ladder chooses the sizes. recipe.py is the config of the
run; nothing is trained. depthmup config digits explains the fields.
"""

from __future__ import annotations

import argparse

from depthmup_flax.commands.parser import Parser
from depthmup_flax.config import shipped
from depthmup_flax.util.errors import InputError

_ORIGIN = "at another compute, by depthmup recipe"


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("Tuned hyperparameters: a shipped config or a Python file.")
    parser.flag("--compute", type=float, help="Operations of the run, in those of the config's.")
    parser.flag("--forecast", help="The --workdir of depthmup forecast: its law chooses.")
    for name in ("width", "depth", "batch_size"):
        parser.flag(f"--{name}", type=int, help=f"The run's {name}; default: chosen.")
    parser.flag("--workdir", help="Directory of recipe.py; default runs/recipe/ and the config's name.")


def main(args: argparse.Namespace) -> None:
    """Prints the recipe and writes its config."""
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.config.fields import validate
    from depthmup_flax.search.forecast.recipe import recipe
    from depthmup_flax.search.forecast.registered import read
    from depthmup_flax.search.tune.search import derived_file, next_training
    from depthmup_flax.storage.workdir.directory import as_path
    from depthmup_flax.storage.workdir.files import write_atomically

    if args.compute is None:
        raise InputError("--compute is not set: give the operations of the run, in those of the config, such as 64.")
    config = args.config.resolved()
    validate(config)
    law = None if args.forecast is None else read(as_path(args.forecast))
    given = {"width": args.width, "depth": args.depth, "batch_size": args.batch_size}
    chosen = recipe(config, args.compute, forecast=law, **given)
    print(chosen)
    path = as_path(args.workdir or f"runs/recipe/{shipped.run_name(args.config.path())}") / "recipe.py"
    text = derived_file(args.config.path(), chosen.config, repr(chosen), origin=_ORIGIN)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    next_training(path, "run")
