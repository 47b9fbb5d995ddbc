"""Trains what registration.md lists, and prints whether depth pays.

    TEXT=tinyshakespeare.txt python -m reproduction.depth.runs [WORKDIR]

The proxy's rate first, then the networks at that rate. Rerunning resumes. TEXT is the file of Tiny Shakespeare.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.special
from ml_collections import ConfigDict

from depthmup_flax.commands import console
from depthmup_flax.config.fields import default_config
from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep.grid import powers_of_two, sweep_config
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED, Record

RECORDS = pathlib.Path(__file__).parent / "records"
WIDTH, DEPTH, STEPS = 64, 4, 1000
RATES, TUNING_SEEDS, SEEDS = powers_of_two(-10, -5), (0, 1), tuple(range(100, 112))
CHANCE = 3.3  # the loss of the best constant guess
AXES = ("parametrization.preset", "model.width", "model.depth", "train.steps")
# Name -> values of `AXES`. "wide" and "long" cost as much as the deep ones: four times the shallow one.
CELLS = {
    "shallow": ("depth_mup", WIDTH, DEPTH, STEPS),
    "deep": ("depth_mup", WIDTH, 4 * DEPTH, STEPS),
    "deep, completep": ("completep", WIDTH, 4 * DEPTH, STEPS),
    "deep, sp": ("sp", WIDTH, 4 * DEPTH, STEPS),
    "wide": ("depth_mup", 2 * WIDTH, DEPTH, STEPS),
    "long": ("depth_mup", WIDTH, DEPTH, 4 * STEPS),
}


def base_config(steps: int = STEPS) -> ConfigDict:
    """The shallow network's run, which the rate is tuned on."""
    config = default_config("res_mlp")
    config.model.update(width=WIDTH, depth=DEPTH, base_width=WIDTH, base_depth=DEPTH)
    config.data.name = "python:reproduction.depth.text:load"
    config.optimizer.update(name="adam", learning_rate=RATES[0], schedule="cosine", warmup_steps=steps // 20)
    config.train.same_code = True  # the program may change; the data's checksum is in the records
    config.train.update(steps=steps, batch_size=128, average_steps=steps // 10, log_every=steps)
    return config


def trained(
    cells: Sequence[tuple[Any, ...]], rates: Sequence[float], seeds: Sequence[int], workdir: pathlib.Path
) -> list[Record]:
    """The records of cells at rates and seeds."""
    load, records = LoadOnce(), []
    for steps in sorted({cell[-1] for cell in cells}):
        grids = {
            f"cell{k}": {
                **dict(zip(AXES, ((value,) for value in cell), strict=True)),
                LEARNING_RATE: rates,
                SEED: seeds,
            }
            for k, cell in enumerate(cells)
            if cell[-1] == steps
        }
        config = sweep_config(
            base_config(steps), grids, figure="depth_pays", title="Does depth pay", scale="cpu", objective="test"
        )
        records += sweep(config, workdir / str(steps), load=load)
    return records


def losses(records: Sequence[Record], cell: tuple[Any, ...], rate: float, seeds: Sequence[int]) -> np.ndarray:
    """Test losses [S] in the order of the seeds, `CHANCE` for a diverged run; `KeyError` for a missing one."""
    of = {
        record.seed: record.loss("test")
        for record in records
        if tuple(record.point[path] for path in AXES) == cell and record.point[LEARNING_RATE] == rate
    }
    return np.array([CHANCE if of[seed] is None else of[seed] for seed in seeds])


def interval(values: np.ndarray) -> str:
    """The mean of (S,) and Student's 95 % interval."""
    half = scipy.special.stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.4f} ({values.mean() - half:+.4f} to {values.mean() + half:+.4f})"


def main(workdir: pathlib.Path) -> None:
    """Trains what is missing and prints the table."""
    shallow = CELLS["shallow"]
    tuning = trained([shallow], RATES, TUNING_SEEDS, workdir / "proxy")
    rate = min(RATES, key=lambda rate: losses(tuning, shallow, rate, TUNING_SEEDS).mean())
    print(f"rate: 2^{np.log2(rate):g}")
    records = trained(list(CELLS.values()), [rate], SEEDS, workdir / "cells")
    of = {name: losses(records, cell, rate, SEEDS) for name, cell in CELLS.items()}
    for name, values in of.items():
        own = f"{values.mean():.4f} +- {values.std(ddof=1):.4f}"
        print(f"{name:16} {own}  minus shallow {interval(values - of['shallow'])}")
    for other in ("wide", "long"):
        print(f"deep minus {other}: {interval(of['deep'] - of[other])}")
    others = SEEDS[:4]
    for name in ("shallow", "deep", "deep, sp"):
        cell = CELLS[name]
        rates = [around for around in RATES if around != rate]
        records = trained([cell], rates, others, workdir / f"around-{cell[0]}")
        for around in rates:
            difference = losses(records, cell, around, others) - of["shallow"][: len(others)]
            print(f"{name} at 2^{np.log2(around):g}, n = {len(others)}: minus shallow {interval(difference)}")


if __name__ == "__main__":
    console.show()
    main(pathlib.Path(sys.argv[1]) if sys.argv[1:] else RECORDS)
