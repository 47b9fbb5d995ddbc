"""Tune a small proxy network and write the config of the large one.

    depthmup tune --config=TARGET --proxy.width=N --proxy.depth=N [FLAG ...]

Examples:
    depthmup tune --config=digits --proxy.width=32 --proxy.depth=4
    depthmup tune --config=my.py --proxy.steps=500 --tune=gamma0,output_lr_factor
    depthmup train --config=runs/tune/digits/tuned.py --workdir=runs/large

The proxy is the target at another width and depth, its base model: Depth-muP
transfers the proxy's hyperparameters to the target. The grid is extended while
the optimum lies at its edge. --target.batch_size and --target.steps rescale
rate, averages, decay and warm-up for a target that is trained otherwise.
depthmup config digits explains the fields of the config.
"""

from absl import flags

from depthmup_flax import cli
from depthmup_flax.compilation_cache import cache_compilations
from depthmup_flax.errors import InputError
from depthmup_flax.rule.rescaling import TIMES, RescalingRule

_CONFIG = cli.define_config("The large network: a shipped config or a Python file.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory; default runs/tune/ and the config's name.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the search in --workdir and start again.")
_WIDTH = flags.DEFINE_integer("proxy.width", 0, "Width of the proxy; 0: model.base_width.")
_DEPTH = flags.DEFINE_integer("proxy.depth", 0, "Depth of the proxy; 0: model.base_depth.")
_STEPS = flags.DEFINE_integer("proxy.steps", 0, "Training steps of a proxy run; 0: the target's.")
_TARGET_BATCH = flags.DEFINE_integer("target.batch_size", None, "Batch size of the target, if another.")
_TARGET_STEPS = flags.DEFINE_integer("target.steps", None, "Steps of the target; default: as many examples.")
_RULE = RescalingRule()
_TIMES = f"{', '.join(TIMES[:-1])} or {TIMES[-1]}."
_AVERAGES = flags.DEFINE_string("rescale.averages", _RULE.averages, f"Adam's averages span as many {_TIMES}")
_DECAY = flags.DEFINE_string("rescale.decay", _RULE.decay, f"Weight decay spans as many {_TIMES}")
_WARMUP = flags.DEFINE_string("rescale.warmup", _RULE.warmup, f"The warm-up spans as many {_TIMES}")
_BATCH_EXPONENT = flags.DEFINE_float("rescale.batch_exponent", None, "Rate ~ batch size^this; default by optimizer.")
_DURATION_EXPONENT = flags.DEFINE_float(
    "rescale.duration_exponent", None, "Rate ~ examples^this; default by optimizer."
)
_TUNE = flags.DEFINE_list("tune", [], "Also branch_multiplier, gamma0, output_lr_factor, ...")
_OCTAVES = flags.DEFINE_integer("octaves", 4, "Factors of two on each side of the config's rate.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Seeds per point.")
_LANES = flags.DEFINE_string("lanes", "auto", "Runs at a time on a device: auto, all or a number.")


def main(argv: list[str]) -> None:
    """Runs the search and writes ``tuned.py``."""
    cli.require_no_arguments(argv)
    cli.one_device_per_core()
    # Imported here, so that --help and a wrong flag answer at once.
    from depthmup_flax.sweep.lane_count import parse_lanes
    from depthmup_flax.training.config import validate
    from depthmup_flax.tune.proxy import proxy_config, tuning_sweep
    from depthmup_flax.tune.rescaled_target import Rescaling
    from depthmup_flax.tune.search import tune

    target = cli.resolved(_CONFIG)
    validate(target)
    workdir = _WORKDIR.value or cli.default_workdir("runs/tune")
    sizes = {}
    for name, flag in (("width", _WIDTH), ("depth", _DEPTH)):
        sizes[name] = flag.value or target.model[f"base_{name}"]
        if not sizes[name]:
            raise InputError(f"--proxy.{name} is not set, and neither is model.base_{name}: set --proxy.{name}.")
    rule = RescalingRule(
        averages=_AVERAGES.value,
        decay=_DECAY.value,
        warmup=_WARMUP.value,
        batch_exponent=_BATCH_EXPONENT.value,
        duration_exponent=_DURATION_EXPONENT.value,
    )
    rescaling = Rescaling(_TARGET_BATCH.value, _TARGET_STEPS.value, rule)
    cache_compilations()
    proxy, large = proxy_config(target, sizes["width"], sizes["depth"], _STEPS.value)
    grid = tuning_sweep(proxy, [name for name in _TUNE.value if name], _OCTAVES.value, _SEEDS.value)
    lanes = parse_lanes(_LANES.value)
    tune(proxy, large, grid, cli.config_path(), workdir, lanes, _OVERWRITE.value, rescaling)


if __name__ == "__main__":
    cli.run(main)
