"""Tunes a small proxy and writes the large network's config: python -m depthmup_flax.tune --config=TARGET.py ...

    python -m depthmup_flax.tune --config=configs/cifar10_resnet.py --proxy.width=64 --proxy.depth=6 --workdir=runs/tune
    python train.py --config=runs/tune/tuned.py --workdir=runs/large

The proxy is the target at another width and depth, which become the base sizes of both: Depth-muP then transfers the
proxy's hyperparameters to the target. The search sweeps the proxy's learning rate, and what --tune names, with several
seeds. It extends the grid while the optimum lies at its edge.

--target.batch_size and --target.steps train the target at another batch size or for another number of steps than the
proxy; rate, averages, epsilon, decay and warm-up are then rescaled (depthmup_flax.rule.rescaling), and printed.
"""

from absl import flags

from depthmup_flax import cli
from depthmup_flax.compilation_cache import cache_compilations
from depthmup_flax.errors import InputError
from depthmup_flax.rule.rescaling import TIMES, RescalingRule

_CONFIG = cli.define_config("Python file with get_config(): the large network.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory for records and tuned.py; resumed if it has them.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the search in --workdir and start again.")
_WIDTH = flags.DEFINE_integer("proxy.width", 0, "Width of the proxy; default: the target's model.base_width.")
_DEPTH = flags.DEFINE_integer("proxy.depth", 0, "Depth of the proxy; default: the target's model.base_depth.")
_STEPS = flags.DEFINE_integer("proxy.steps", 0, "Training steps of each proxy run; default: the target's.")
_TARGET_BATCH = flags.DEFINE_integer("target.batch_size", None, "Batch size of the target; default: its config's.")
_TARGET_STEPS = flags.DEFINE_integer(
    "target.steps", None, "Training steps of the target; default: as many examples as its config says."
)
_RULE = RescalingRule()
_TIMES = f"{', '.join(TIMES)}; see depthmup_flax.rule.rescaling."
_AVERAGES = flags.DEFINE_string("rescale.averages", _RULE.averages, f"Keep the time of Adam's averages in {_TIMES}")
_DECAY = flags.DEFINE_string("rescale.decay", _RULE.decay, f"Keep the time of weight decay in {_TIMES}")
_WARMUP = flags.DEFINE_string("rescale.warmup", _RULE.warmup, f"Keep the time of the warm-up in {_TIMES}")
_BATCH_EXPONENT = flags.DEFINE_float(
    "rescale.batch_exponent", None, "The rate follows the batch size to this power; default: the optimizer's."
)
_DURATION_EXPONENT = flags.DEFINE_float(
    "rescale.duration_exponent",
    None,
    "The rate follows the examples to this power; default: the optimizer's.",
)
_TUNE = flags.DEFINE_list("tune", [], "Also tune these: branch_multiplier, gamma0, input_lr_factor, output_lr_factor.")
_OCTAVES = flags.DEFINE_integer("octaves", 4, "Factors of two to try on each side of the config's learning rate.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Seeds per point.")
_LANES = flags.DEFINE_string("lanes", "auto", "Runs together on each device: auto (benchmark), all, or a number.")


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
