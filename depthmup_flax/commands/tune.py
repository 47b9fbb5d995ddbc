"""Tune a small proxy network and write the config of the large one.

    depthmup tune --config=TARGET --proxy.width=N --proxy.depth=N [FLAG ...]

Examples:
    depthmup tune --config=digits_deep --compare=sp
    depthmup tune --config=my.py --proxy.depth=4 --tune=gamma0,branch_multiplier=0.1:2
    depthmup train --config=runs/tune/my/tuned.py --workdir=runs/large

The proxy is the target at a smaller width and depth, which become the target's
base sizes: Depth-muP transfers the proxy's hyperparameters. Its runs are compared by
the loss on a tenth of the training examples, on which they do not train.
--target.batch_size and --target.steps rescale rate, averages, decay and warm-up for
another batch size or length. depthmup config digits explains the fields.
"""

import argparse

from depthmup_flax.commands.parser import Parser, lanes, names, one_device_per_core, workdir_of
from depthmup_flax.devices.host import cache_compilations
from depthmup_flax.storage.sweep_records import OBJECTIVE_CHOICES


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_config("The large network: a shipped config or a Python file.")
    parser.flag("--workdir", help="Directory; default runs/tune/ and the config's name.")
    parser.flag("--overwrite", action="store_true", help="Delete the search in --workdir and start again.")
    parser.flag("--proxy.width", type=int, default=0, help="Width of the proxy; 0: model.base_width.")
    parser.flag("--proxy.depth", type=int, default=0, help="Depth of the proxy; 0: model.base_depth.")
    parser.flag("--proxy.steps", type=int, default=0, help="Training steps of a proxy run; 0: the target's.")
    parser.flag("--target.batch_size", type=int, help="Batch size of the target; default: the config's.")
    parser.flag("--target.steps", type=int, help="Steps of the target; default: equally many examples.")
    parser.flag("--tune", type=names, help="Default: learning_rate,branch_multiplier,{input,output}_lr_factor.")
    parser.flag("--trials", type=int, default=48, help="Points beyond the rates, if more than the rate is tuned.")
    compared = "The loss that is compared; auto: on held-out training examples."
    parser.flag("--objective", default="auto", choices=OBJECTIVE_CHOICES, help=compared)
    others = "Also train the target, or with --ladder a size of it, under presets: sp, ..."
    parser.flag("--compare", type=names, default=[], help=others)
    larger = "Train sizes up to the target's for this share of its run, such as 0.1, and take the rate they predict."
    parser.flag("--ladder", type=float, help=larger)
    parser.flag("--octaves", type=int, default=4, help="Octaves to search on each side of the config's rate.")
    parser.flag("--seeds", type=int, default=3, help="Seeds per learning rate.")
    parser.flag("--lanes", type=lanes, help="Runs at a time on a device: auto, which is the default, all or a number.")


def main(args: argparse.Namespace) -> None:
    """Runs the search and writes ``tuned.py``."""
    one_device_per_core()
    # Late imports: --help and a wrong flag answer at once.
    from depthmup_flax.search.tune.searches import default_names, search_of
    from depthmup_flax.search.tune.tune_target import next_training, tune_target
    from depthmup_flax.search.tune.tuning import proxy_config

    target = args.config.resolved()
    proxy, large = proxy_config(target, args.proxy_width, args.proxy_depth, args.proxy_steps)
    words = default_names(proxy) if args.tune is None else args.tune
    named = ((name, ends.split(":") if equals else None) for name, equals, ends in (w.partition("=") for w in words))
    search = search_of(proxy, named, seeds=args.seeds, octaves=args.octaves, trials=args.trials)
    cache_compilations()
    tuned = tune_target(
        (proxy, large),
        search,
        args.config.path(),
        workdir_of(args, "runs/tune"),
        lanes=args.lanes,
        overwrite=args.overwrite,
        batch_size=args.target_batch_size,
        total_steps=args.target_steps,
        objective=args.objective,
        compare=args.compare,
        ladder=args.ladder,
    )
    next_training(tuned, "target")
