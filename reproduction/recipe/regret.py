"""What recipes cost against a search at the target: the runs of reproduction/pages/recipe_table.py.

    python -m reproduction.recipe.regret NAME COMPUTE      NAME: mlp, gpt, conv; COMPUTE: 16, 64

The search: sizes at three rates, a factor 2 apart, more if the best is the first or the last. Its two best runs and the
recipe are then trained with other seeds. Rerunning resumes. reproduction/recipe/run.sh runs all.
Environment: DATA_DIR is the directory of prepared TFDS data sets, TEXT a text file (Tiny Shakespeare).
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.commands.parser import one_device_per_core
from depthmup_flax.config import from_file
from depthmup_flax.config.fields import field_paths, get_field
from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep.grid import sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED
from reproduction.recipe.allocation import recipe

HERE = pathlib.Path(__file__).parent
RECORDS, RESULTS = HERE.parent / "records", HERE / "results.jsonl"
# Name, compute -> width, depth, batch size. The first at 16 is balanced: parameters ~ compute^0.5, depth ~ width, batch
# size ~ examples^0.4; others have other powers, those of all that was better, or were chosen by a ladder's law.
SIZES = {
    ("mlp", "16"): (
        *((80, 10, 128), (56, 7, 128), (96, 12, 64), (96, 4, 128), (64, 16, 128), (80, 10, 64), (72, 4, 128)),
        *((72, 6, 64), (112, 1, 64), (48, 5, 64), (72, 4, 64)),
    ),
    ("mlp", "64"): (
        *((128, 8, 64), (88, 7, 64), (184, 10, 64), (96, 4, 64), (80, 10, 64), (88, 7, 192), (192, 1, 64)),
        *((160, 9, 64), (64, 6, 64)),
    ),
    ("gpt", "16"): (
        *((28, 4, 16), (24, 3, 16), (32, 4, 8), (36, 2, 16), (24, 4, 16), (28, 4, 8), (20, 3, 8), (24, 2, 8)),
    ),
    ("gpt", "64"): ((28, 3, 8), (24, 2, 8), (44, 3, 8), (28, 3, 24)),
    ("conv", "16"): (
        *((48, 4, 64), (40, 4, 64), (56, 5, 32), (64, 3, 64), (48, 7, 64), (48, 4, 32), (40, 5, 64), (40, 3, 32)),
        (112, 3, 32),
    ),
    ("conv", "64"): ((48, 4, 32), (40, 3, 32), (64, 4, 32), (48, 4, 96), (136, 3, 32), (48, 3, 32)),
}
FACTORS, FINER = (0.5, 1.0, 2.0), (0.7, 1.4)
SEARCH_SEEDS = {"16": (0, 1), "64": (0,)}
BEST = {"16": 2, "64": 1}  # runs of the search that get other seeds
OTHER_SEEDS = {"16": (10, 11, 12, 13), "64": (10, 11, 12)}
Runs = list[tuple[ConfigDict, Sequence[float], Sequence[int]]]  # config, factors of its rate, seeds


def proxy(name: str) -> ConfigDict:
    """The tuned config with its data."""
    config = from_file(HERE / f"{name}.py")
    if name == "gpt":
        config.data.name = f"text:{os.environ.get('TEXT', 'tinyshakespeare.txt')}"
    else:
        config.data.data_dir = os.environ.get("DATA_DIR", "")
    return config


class Search:
    """The runs of one network and compute."""

    def __init__(self, name: str, compute: str) -> None:
        self.compute, self.tuned, self.load, self.runs = compute, proxy(name), LoadOnce(), Runs()
        self.workdir = RECORDS / f"recipe_{name}_{compute}-cpu"
        self.budget = {"tuned": self.tuned, "compute": float(compute), "load": self.load}
        self.star = [self.sized(*size) for size in SIZES[name, compute]]
        configs = [self.tuned, *self.star]
        self.paths = [p for p in field_paths(self.tuned) if len({repr(get_field(c, p)) for c in configs}) > 1]

    def sized(self, width: int, depth: int, batch_size: int) -> ConfigDict:
        """The config of a run of these sizes."""
        return recipe(**self.budget, width=width, depth=depth, batch_size=batch_size).config

    def losses(self, runs: Runs) -> list[dict[float, float]]:
        """Trains more runs; for each of them rate -> test loss, the mean over its seeds."""
        self.runs += runs
        grids = {
            f"run{k}": {**dict(zip(self.paths, self.values(config), strict=True)), LEARNING_RATE: rates, SEED: seeds}
            for k, (config, factors, seeds) in enumerate(self.runs)
            if (rates := tuple(float(f"{config.optimizer.learning_rate * factor:.6g}") for factor in factors))
        }
        title = "Allocations of compute around a recipe"
        grid = sweep_config(self.tuned, grids, figure="recipe", title=title, scale="cpu", objective="test", extend=1)
        self.records = sweep(grid, self.workdir, lanes=1, load=self.load)
        return [self.means(config, seeds) for config, _, seeds in runs]

    def row(self, config: ConfigDict) -> dict[str, Any]:
        """Sizes of a run, and the test losses of its other seeds."""
        model, train, rate = config.model, config.train, float(f"{config.optimizer.learning_rate:.6g}")
        sizes = {"width": model.width, "depth": model.depth, "batch_size": train.batch_size, "steps": train.steps}
        return {**sizes, "learning_rate": rate, "losses": self.by_rate(config, OTHER_SEEDS[self.compute])[rate]}

    def values(self, config: ConfigDict) -> list[tuple[object, ...]]:
        """The axes of one config."""
        return [(get_field(config, path),) for path in self.paths]

    def means(self, config: ConfigDict, seeds: Sequence[int]) -> dict[float, float]:
        """Rate -> mean test loss; without rates at which a seed diverged."""
        return {rate: sum(of) / len(of) for rate, of in self.by_rate(config, seeds).items() if None not in of}

    def by_rate(self, config: ConfigDict, seeds: Sequence[int]) -> dict[float, list[Any]]:
        """Rate -> test loss of each seed."""
        fixed = {path: get_field(config, path) for path in self.paths if path != LEARNING_RATE}
        losses: dict[float, list[Any]] = {}
        for record in sorted(self.records, key=lambda record: (record.point[LEARNING_RATE], record.seed)):
            if record.seed in seeds and all(record.point[path] == value for path, value in fixed.items()):
                losses.setdefault(record.point[LEARNING_RATE], []).append(record.loss("test"))
        return losses


def train(name: str, compute: str) -> None:
    """The whole search."""
    search, seeds = Search(name, compute), SEARCH_SEEDS[compute]
    recipes = {"recipe": recipe(**search.budget).config}
    configs = [*search.star, *recipes.values()]
    first = search.losses([(config, FACTORS, seeds) for config in configs])
    for size, losses in zip([*SIZES[name, compute], *recipes], first, strict=True):
        print(size, {f"{rate:.4g}": round(loss, 4) for rate, loss in losses.items()}, flush=True)
    points = sorted({loss: (loss, k, rate) for k, of in enumerate(first) for rate, loss in of.items()}.values())
    if compute == "16":
        (finer,) = search.losses([(at(configs[points[0][1]], points[0][2]), FINER, seeds)])
        points = sorted({*points, *((loss, points[0][1], rate) for rate, loss in finer.items())})
    print([(round(loss, 4), k, rate) for loss, k, rate in points[:4]], flush=True)
    finals = recipes | {
        f"search, {k + 1}": at(configs[c], rate) for k, (_, c, rate) in enumerate(points[: BEST[compute]])
    }
    if compute == "16":
        finals["balanced"] = search.star[0]
    search.losses([(config, (1.0,), OTHER_SEEDS[compute]) for config in finals.values()])
    rows = [{"name": name, "compute": int(compute), "run": run, **search.row(config)} for run, config in finals.items()]
    kept = [row for row in results() if (row["name"], row["compute"]) != (name, int(compute))]
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in [*kept, *rows]))
    for row in rows:
        print(row, flush=True)


def results() -> list[dict[str, Any]]:
    """The runs with other seeds."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def at(config: ConfigDict, rate: float) -> ConfigDict:
    """The config with another rate."""
    config = config.copy_and_resolve_references()
    config.optimizer.learning_rate = rate
    return config


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    one_device_per_core()
    train(*sys.argv[1:])
