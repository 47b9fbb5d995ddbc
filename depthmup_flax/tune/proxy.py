"""The proxy of a large network, and the sweep over its hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config
from depthmup_flax.records.table import LEARNING_RATE, SEED
from depthmup_flax.sweep.grid import powers_of_two, sweep_config
from depthmup_flax.util.errors import InputError, closest, did_you_mean

# Field of the parametrization that --tune may name -> factors of its present value that are tried.
TUNABLE: Mapping[str, Sequence[float]] = {
    **dict.fromkeys(("branch_multiplier", "gamma0"), powers_of_two(-2, 2)),
    **dict.fromkeys(("input_lr_factor", "output_lr_factor"), powers_of_two(-4, 4, 2)),
}
_MOST_OCTAVES = 20
EXTEND = 4  # learning rates that may be added at each end of the grid


def proxy_config(target: ConfigDict, width: int, depth: int, steps: int = 0) -> tuple[ConfigDict, ConfigDict]:
    """``(proxy, target)``: configs that both have the proxy's width and depth as their base.

    The proxy trains for ``steps`` steps, or for the target's.

    Raises:
      InputError: the proxy is not smaller than the target, or the parametrization does not transfer.
    """
    proxy, large = target.copy_and_resolve_references(), target.copy_and_resolve_references()
    proxy.mesh = default_config().mesh  # a sweep trains whole networks on each device
    for name, value in (("width", width), ("depth", depth)):
        largest = target.model[name]
        if not 1 <= value <= largest:
            raise InputError(
                f"--proxy.{name} is {value}: it must be between 1 and the target's model.{name}, {largest}."
            )
        proxy.model[name] = proxy.model[f"base_{name}"] = large.model[f"base_{name}"] = value
    if (width, depth) == (target.model.width, target.model.depth):
        raise InputError(f"--proxy.width={width} --proxy.depth={depth} is the target itself: choose a smaller proxy.")
    if "stage_sizes" in proxy.model:
        proxy.model.stage_sizes = ()
    preset = target.parametrization.preset
    if preset == "sp":
        raise InputError("parametrization.preset is 'sp', whose hyperparameters do not transfer: use 'depth_mup'.")
    if preset == "mup" and depth != target.model.depth:
        raise InputError(
            "parametrization.preset is 'mup', which transfers over width only: use 'depth_mup', or a proxy of the "
            f"target's depth, --proxy.depth={target.model.depth}."
        )
    if steps < 0:
        raise InputError(f"--proxy.steps is {steps}: use a whole number of at least 0.")
    if steps:
        # Averaged over a whole short run, the loss would measure how early it falls.
        average = proxy.train.average_steps or max(1, steps // 5)
        proxy.train.update(steps=steps, epochs=0.0, average_steps=min(average, steps))
    return proxy, large


def tuning_sweep(proxy: ConfigDict, names: Sequence[str], octaves: int, seeds: int) -> ConfigDict:
    """The sweep over ``names`` and the proxy's learning rate, ``octaves`` factors of two each way from the config's."""
    for flag, value in (("octaves", octaves), ("seeds", seeds)):
        if value < 1:
            raise InputError(f"--{flag} is {value}: use a whole number of at least 1.")
    if octaves > _MOST_OCTAVES:
        raise InputError(f"--octaves is {octaves}: use at most {_MOST_OCTAVES}, a million times the config's rate.")
    rate = proxy.optimizer.learning_rate
    if not rate > 0:
        raise InputError(f"optimizer.learning_rate is {rate}: set a positive one; the search starts from it.")
    grid: dict[str, Sequence[float]] = {
        LEARNING_RATE: [rate * factor for factor in powers_of_two(-octaves, octaves)],
        SEED: range(proxy.seed, proxy.seed + seeds),
    }
    for name in names:
        if closest(name, (*TUNABLE, LEARNING_RATE)) == LEARNING_RATE:
            raise InputError(f"--tune has {name!r}: the learning rate is always tuned. Leave {name!r} out.")
        if name not in TUNABLE:
            raise InputError(f"--tune has {name!r}: {did_you_mean(name, TUNABLE)}")
        present = proxy.parametrization[name]
        start = 1.0 if present is None else present
        grid[f"parametrization.{name}"] = [start * factor for factor in TUNABLE[name]]
    return sweep_config(proxy, {"proxy": grid}, figure="tune", title="Tuning of a proxy", scale="proxy", extend=EXTEND)
