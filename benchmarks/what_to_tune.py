"""What tuning more than the learning rate gains, at equal numbers of runs of the proxy.

    python -m benchmarks.what_to_tune digits_deep OUT [--searches=3] [--set FIELD=VALUE ...]

Each search, with seeds of its own, tunes the rate alone, with 10 seeds for a rate, then the rate with other
hyperparameters (`search.tune.searches.Rounds`). The target trains at each choice with seeds of no search. Rerunning the
command resumes; the last lines are the table.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict
from scipy import stats

from depthmup_flax.config.fields import set_field
from depthmup_flax.config.files import from_file
from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.search.tune.searches import search_of
from depthmup_flax.search.tune.tuning import prepare_objective, proxy_config
from depthmup_flax.storage.sweep_records import AUTO, SEED
from depthmup_flax.trainer.engine.from_config import build

TUNED = {
    "rate": (),
    "rate, a, roles": ("branch_multiplier", "input_lr_factor", "output_lr_factor"),
}
LANES = 16
ALONE, OCTAVES = 10, 4  # 9 rates with 10 seeds are about as many runs as `Rounds` has, 91
# Target and proxy: width, depth; further fields of the config, for two CPU cores.
PROXIES = {
    "digits_deep": ((64, 32), (32, 4), {}),
    "cifar10_resmlp": (
        (64, 16),
        (64, 4),
        {"optimizer.frozen": (), "train.steps": 300, "train.average_steps": 60, "train.log_every": 100},
    ),
    "shakespeare_gpt": (
        (32, 8),
        (32, 2),
        {
            "train.steps": 100,
            "train.batch_size": 4,
            "train.average_steps": 20,
            "train.log_every": 50,
            "data.context": 32,
            "optimizer.warmup_steps": 20,
        },
    ),
}


def main(words: Sequence[str] | None = None) -> None:
    """Searches, trains the targets and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PROXIES)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--fresh", type=int, default=4, help="seeds of the target")
    parser.add_argument("--set", nargs="*", default=[], help="further fields, FIELD=VALUE")
    args = parser.parse_args(words)
    config, sizes = _config(args.name, args.set)
    load = LoadOnce()
    losses: dict[str, list[float]] = {}
    for search in range(args.searches):
        config.seed = 100 * search
        for tuned, names in TUNED.items():
            where = args.out / f"{args.name}_{search}_{len(names)}"
            values = _search(config, sizes, names, where, load)
            mean = statistics.fmean(_target(config, sizes, values, args.fresh, where / "target", load))
            losses.setdefault(tuned, []).append(mean)
            print(
                args.name, search, tuned, {path.rpartition(".")[2]: x for path, x in values.items()}, mean, flush=True
            )
    for tuned, of_searches in losses.items():
        gain = np.subtract(losses["rate"], of_searches)
        half = stats.t.ppf(0.975, len(gain) - 1) * stats.sem(gain)
        spread = f"{np.mean(of_searches):.4f} ± {np.std(of_searches, ddof=1):.4f}"
        print(
            f"{tuned:16} {spread}  gain {gain.mean():.4f}, 95 %: {gain.mean() - half:.4f} to {gain.mean() + half:.4f}"
        )


def _config(name: str, fields: Sequence[str]) -> tuple[ConfigDict, tuple[int, int]]:
    (width, depth), sizes, changes = PROXIES[name]
    config = from_file(name)
    given = dict(field.split("=", 1) for field in fields)
    for path, value in {"model.width": width, "model.depth": depth, **changes, **given}.items():
        set_field(config, path, value)
    return config, sizes


def _search(
    config: ConfigDict, sizes: tuple[int, int], names: Sequence[str], where: pathlib.Path, load: LoadOnce
) -> dict[str, float]:
    """The best values of one search."""
    proxy, large = proxy_config(config, *sizes)
    objective = prepare_objective(AUTO, proxy, build(large, load=load))
    seeds = range(config.seed, config.seed + (3 if names else ALONE))
    search = search_of(proxy, ((name, None) for name in names), seeds=seeds, octaves=OCTAVES)
    of_sweep = {
        "figure": search.figure,
        "title": "Tuning",
        "scale": "proxy",
        "extend": search.rounds,
        "objective": objective,
    }
    grid = sweep_config(proxy, {"proxy": search.grid()}, **of_sweep)
    return search.choice(grid, sweep(grid, where, lanes=LANES, load=load, more=search.more)).values


def _target(
    config: ConfigDict,
    sizes: tuple[int, int],
    values: dict[str, float],
    fresh: int,
    where: pathlib.Path,
    load: LoadOnce,
) -> list[float]:
    """The target's test losses; infinite where it diverged."""
    _, large = proxy_config(config, *sizes)
    axes = {path: (float(f"{value:.4g}"),) for path, value in values.items()}
    seeds = range(config.seed + 50, config.seed + 50 + fresh)
    of_sweep = {"figure": "target", "title": "Target", "scale": "target"}
    records = sweep(sweep_config(large, {"target": {**axes, SEED: seeds}}, **of_sweep), where, lanes=LANES, load=load)
    return [np.inf if record.test_loss is None else record.test_loss for record in records]


if __name__ == "__main__":
    main()
