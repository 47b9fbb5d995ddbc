"""Tuning a small proxy of a large network: the search, the best point, and the large network's config with it."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.data import LoadOnce
from depthmup_flax.errors import InputError, did_you_mean
from depthmup_flax.files import write_atomically
from depthmup_flax.records import COMPLETED, LEARNING_RATE, Record
from depthmup_flax.report.optimum import find_optimum
from depthmup_flax.sweep.grid import powers_of_two, sweep_config
from depthmup_flax.sweep.runner import sweep
from depthmup_flax.training.config import default_config, field_paths, get_field, set_field
from depthmup_flax.training.experiment import build

# Flag name -> field and the powers of two around its present value that are tried.
TUNABLE: dict[str, tuple[str, tuple[float, ...]]] = {
    "branch_multiplier": ("parametrization.branch_multiplier", powers_of_two(-2, 2)),
    "gamma0": ("parametrization.gamma0", powers_of_two(-2, 2)),
    "input_lr_factor": ("parametrization.input_lr_factor", powers_of_two(-4, 4, 2)),
    "output_lr_factor": ("parametrization.output_lr_factor", powers_of_two(-4, 4, 2)),
}
_EXTEND = 4  # learning rates that may be added at an end of the grid
_WITHIN = 0.01  # rates whose loss is within this share of the best are as good


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a tuned proxy says.

    Attributes:
      values: dotted field -> the value to use; the learning rate is the vertex of a parabola in its logarithm.
      loss: lowest mean loss of the proxy on the grid.
      interval: 95 % interval of the best learning rate from resampled seeds, or ``None`` (fewer than two seeds, or an
        optimum at the end of the grid).
      as_good: the lowest and highest rate of the grid whose mean loss is within 1 % of the best.
      seeds: number of seeds.
      flag: what the best point is at the border of; empty if it lies inside the grid.
    """

    values: dict[str, float]
    loss: float
    interval: tuple[float, float] | None
    as_good: tuple[float, float]
    seeds: int
    flag: str


def proxy_config(target: ConfigDict, width: int, depth: int) -> tuple[ConfigDict, ConfigDict]:
    """``(proxy, target)``, both with the proxy's width and depth as their base.

    Raises:
      InputError: the proxy is not smaller, or the parametrization does not transfer.
    """
    proxy, large = target.copy_and_resolve_references(), target.copy_and_resolve_references()
    proxy.mesh = default_config().mesh  # a proxy fits on one device
    for name, value in (("width", width), ("depth", depth)):
        if not 1 <= value <= target.model[name]:
            raise InputError(
                f"--proxy.{name}={value}: use between 1 and the target's model.{name}, {target.model[name]}."
            )
        proxy.model[name] = value
        for config in (proxy, large):
            config.model[f"base_{name}"] = value
    if (width, depth) == (target.model.width, target.model.depth):
        raise InputError(f"--proxy.width={width} --proxy.depth={depth} is the target itself: choose a smaller proxy.")
    if "stage_sizes" in proxy.model:
        proxy.model.stage_sizes = ()
    preset = target.parametrization.preset
    if preset == "sp":
        raise InputError("parametrization.preset is 'sp', whose hyperparameters do not transfer: use 'depth_mup'.")
    if preset == "mup" and depth != target.model.depth:
        raise InputError(
            "parametrization.preset is 'mup', which transfers over width alone: use 'depth_mup', or a proxy of the "
            f"target's depth, --proxy.depth={target.model.depth}."
        )
    return proxy, large


def tuning_sweep(proxy: ConfigDict, names: Sequence[str], octaves: int, seeds: int) -> ConfigDict:
    """The sweep over the proxy's learning rate, ``octaves`` each way around the config's, and over ``names``."""
    if octaves < 1 or seeds < 1:
        raise InputError(f"--octaves={octaves} --seeds={seeds}: use at least 1 of each.")
    if not proxy.optimizer.learning_rate > 0:
        raise InputError(
            f"optimizer.learning_rate is {proxy.optimizer.learning_rate}: set a positive one to search around."
        )
    grid: dict[str, Any] = {
        LEARNING_RATE: tuple(proxy.optimizer.learning_rate * f for f in powers_of_two(-octaves, octaves)),
        "seed": tuple(range(proxy.seed, proxy.seed + seeds)),
    }
    for name in names:
        if name not in TUNABLE:
            raise InputError(f"--tune has {name!r}: {did_you_mean(name, TUNABLE)}")
        path, factors = TUNABLE[name]
        present = get_field(proxy, path)
        grid[path] = tuple((1.0 if present is None else present) * factor for factor in factors)
    return sweep_config(proxy, {"proxy": grid}, figure="tune", title="Tuning of a proxy", scale="proxy", extend=_EXTEND)


def best(records: Sequence[Record]) -> Choice:
    """The best point of a proxy's records: lowest mean training loss over seeds, then a parabola in log2 of the rate.

    Raises:
      InputError: every run diverged.
    """
    seeds = sorted({record.seed for record in records})
    curves: dict[tuple[tuple[str, float], ...], dict[float, dict[int, float]]] = {}
    for record in records:
        rest = tuple((k, v) for k, v in record.point.items() if k not in (LEARNING_RATE, "seed"))
        loss = record.train_loss_avg if record.status == COMPLETED else None
        by_rate = curves.setdefault(rest, {}).setdefault(record.point[LEARNING_RATE], {})
        by_rate[record.seed] = math.nan if loss is None else loss
    found = []
    for rest, curve in curves.items():
        rates = np.array(sorted(curve))
        losses = np.array([[curve[rate].get(seed, math.nan) for rate in rates] for seed in seeds])
        optimum = find_optimum(np.log2(rates), losses)
        if optimum is not None:
            found.append((optimum.loss.value, rest, rates, losses.mean(0), optimum))
    if not found:
        raise InputError(
            "every run of the proxy diverged: set a lower optimizer.learning_rate, around which to search, or a "
            "longer optimizer.warmup_steps."
        )
    loss, rest, rates, means, optimum = min(found, key=lambda entry: entry[0])
    good = rates[means <= loss * (1 + _WITHIN)]
    interval = optimum.at.interval
    return Choice(
        values={LEARNING_RATE: float(2**optimum.at.value), **dict(rest)},
        loss=loss,
        interval=None if interval is None else (2 ** interval[0], 2 ** interval[1]),
        as_good=(float(good.min()), float(good.max())),
        seeds=len(seeds),
        flag=", ".join(filter(None, (optimum.flag, *_ends(dict(rest), records)))),
    )


def _ends(values: Mapping[str, float], records: Sequence[Record]) -> list[str]:
    """Which of the values are at an end of their own grid."""
    grids = {path: {record.point[path] for record in records} for path in values}
    at_end = [path for path, grid in grids.items() if len(grid) > 1 and values[path] in (min(grid), max(grid))]
    return [f"{path.rpartition('.')[2]} at the end of its grid" for path in at_end]


def tuned_file(
    original: pathlib.Path, arguments: Sequence[str], config: ConfigDict, parent: ConfigDict, said: str
) -> str:
    """The text of a config file that is ``original``, called with ``arguments``, with what differs in ``config``."""
    changed = [path for path in field_paths(config) if get_field(config, path) != get_field(parent, path)]
    lines = "\n".join(f"            {path!r}: {get_field(config, path)!r}," for path in changed)
    return f'''"""{original.stem}, with hyperparameters from a small proxy.

{said}
"""

from ml_collections import ConfigDict

from depthmup_flax.training.config import from_file


def get_config() -> ConfigDict:
    """The configuration."""
    config = from_file({", ".join(map(repr, (os.fspath(original.resolve()), *arguments)))})
    config.update_from_flattened_dict(
        {{
{lines}
        }}
    )
    return config
'''


def tune(
    target: ConfigDict,
    target_file: str | pathlib.Path,
    parent: ConfigDict,
    workdir: str | pathlib.Path,
    *,
    width: int,
    depth: int,
    steps: int = 0,
    names: Sequence[str] = (),
    arguments: Sequence[str] = (),
    overwrite: bool = False,
    octaves: int = 4,
    seeds: int = 3,
    lanes: int | None = None,
) -> Choice:
    """Sweeps the proxy in ``workdir`` (or goes on with it), writes ``tuned.py`` there, and says what it found.

    Args:
      target: the large network's config, with whatever the command line changed.
      target_file: where it comes from; ``tuned.py`` loads it.
      parent: the config as the file has it.
      workdir: for the sweep's records, ``tuned.py`` and ``report/``.
      width, depth: the proxy's.
      steps: training steps of a proxy's run; 0: as many as the target's.
      names: of `TUNABLE`, to be tuned together with the learning rate.
      arguments: what ``target_file``'s ``get_config`` was called with.
      overwrite: delete the search that ``workdir`` holds.
      octaves: how many factors of two the learning rate is tried in each direction.
      seeds: per point.
      lanes: see `depthmup_flax.sweep.runner.sweep`.

    Raises:
      InputError: a proxy or option that cannot be, or all runs diverged.
    """
    proxy, large = proxy_config(target, width, depth)
    if steps:
        # Over a whole short run the mean would judge how early the loss falls.
        average = proxy.train.average_steps or max(1, steps // 5)
        proxy.train.update(steps=steps, epochs=0.0, average_steps=min(average, steps))
    config = tuning_sweep(proxy, names, octaves, seeds)
    load = LoadOnce()
    ratio = build(large, load=load).cost / build(proxy, load=load).cost
    print(
        f"proxy: width {width} (target {target.model.width}), depth {depth} (target {target.model.depth})", flush=True
    )
    records = sweep(config, workdir, lanes=lanes, load=load, overwrite=overwrite)
    choice = best(records)
    for path, value in choice.values.items():
        set_field(large, path, float(f"{value:.4g}"))
    said = describe(choice, proxy)
    tuned = pathlib.Path(workdir) / "tuned.py"
    write_atomically(tuned, tuned_file(pathlib.Path(target_file), arguments, large, parent, said))
    spent = sum(record.wall_time_s for record in records)
    print(
        f"{said}\n\n{len(records)} runs of the proxy took {spent:,.0f} s. The same search on the target itself would "
        f"be {ratio:,.0f} times the work (parameters times examples).\n"
        f"Now: python train.py --config={tuned} --workdir={pathlib.Path(workdir) / 'target'}\n"
        f"Figures of the search: python -m depthmup_flax.report {workdir}",
        flush=True,
    )
    return choice


def describe(choice: Choice, proxy: ConfigDict) -> str:
    """What was found and how sure that is, in sentences."""
    rate = choice.values[LEARNING_RATE]
    others = "".join(f", {path} {value:.4g}" for path, value in choice.values.items() if path != LEARNING_RATE)
    sizes = f"width {proxy.model.width}, depth {proxy.model.depth}"
    lines = [
        f"Best on the proxy ({sizes}): {LEARNING_RATE} {rate:.4g}{others}; training loss {choice.loss:.4f}, "
        f"n = {choice.seeds} seeds."
    ]
    if choice.interval is not None:
        lines.append(
            f"95 % interval of the rate from resampled seeds: {choice.interval[0]:.3g} to {choice.interval[1]:.3g}."
        )
    elif choice.seeds < 2:
        lines.append("One seed says nothing about how sure that is: use --seeds=3.")
    if choice.flag:
        lines.append(f"Take care, the best point lies at a border ({choice.flag}): start from other values.")
    low, high = choice.as_good
    lines.append(f"Rates from {low:.3g} to {high:.3g} are within {_WITHIN:.0%} of the best loss.")
    return "\n".join(lines)
