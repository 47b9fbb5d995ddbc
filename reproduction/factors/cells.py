"""Two residual MLPs, each with AdamW and with AdamH, and the factors of their branches' decay or rate at four sizes.

A cell is tuned at the base; at every size its best numbers are kept, and one factor of the branches' matrices varies.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config
from depthmup_flax.search.sweep.grid import powers_of_two, sweep_config
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED, TEST, TRAIN, Record, read_sweep

WIDTH, DEPTH, TIMES, SEEDS, STEPS = 32, 4, 4, 5, 600
# In the order in which they are run.
SIZES = {
    "deep": (WIDTH, DEPTH * TIMES),
    "wide": (WIDTH * TIMES, DEPTH),
    "both": (WIDTH * TIMES, DEPTH * TIMES),
}
# Marin's fit of AdamH's rate, width^-.37 where depth grows along, over ours, m^-1/2 r^-1/2, at both times four.
MARIN = TIMES**0.63
# The rule's base is half as wide, so that matrices of branches have a width ratio other than 1 at every size, by a
# power of which their decay differs from that of the stem and the readout.
_RULES_WIDTH = WIDTH // 2
DECAY, DECAY_EXPONENT = "optimizer.weight_decay", "optimizer.decay_width_exponent"
BRANCH_RATE = "parametrization.hidden_lr_factor"
_DECAYS = (0.0, 0.125, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A network and what varies: ``decay`` of AdamW, or the ``rate`` of AdamH's matrices."""

    network: str
    varied: str

    @property
    def name(self) -> str:
        """Of its records."""
        return f"{self.network}-{self.varied}"

    @property
    def factors(self) -> tuple[float, ...]:
        """Of the branches' decay or rate, times the rule's."""
        return powers_of_two(-4, 2) if self.varied == "decay" else (*powers_of_two(-2, 1), MARIN, *powers_of_two(2, 3))

    @property
    def objective(self) -> str:
        """Decay is for the test loss of networks that memorize their examples; rates are for the training loss."""
        return TEST if self.varied == "decay" else TRAIN

    def base(self) -> ConfigDict:
        """The config at 32 x 4."""
        is_decay = self.varied == "decay"
        config = default_config("res_mlp")
        config.model.update(width=WIDTH, depth=DEPTH, base_width=_RULES_WIDTH, base_depth=DEPTH)
        config.model.update(_NETWORKS[self.network], zero_init_readout=True)
        examples = 2000 if is_decay else 9600
        config.data.update(name="tfds:cifar10", image_size=16, train_examples=examples, test_examples=2000)
        config.optimizer.update(name="adam" if is_decay else "adamh", warmup_steps=STEPS // 10, schedule="cosine")
        tenth = STEPS // 10
        config.train.update(steps=STEPS, average_steps=tenth, log_every=tenth, eval_every=STEPS, eval_batch_size=2000)
        config.train.same_code = True
        return config

    def tuning(self) -> ConfigDict:
        """The sweep at the base."""
        rates = powers_of_two(-9, -5) if self.varied == "decay" else powers_of_two(-8, -3)
        grid = {LEARNING_RATE: rates, SEED: tuple(range(SEEDS))}
        if self.varied == "decay":
            grid[DECAY] = _DECAYS
        return self._sweep(self.base(), {"base": grid})

    @property
    def sizes(self) -> Mapping[str, tuple[int, int]]:
        """Where factors vary: decay over depth is in question, AdamH's rate over both."""
        return {name: size for name, size in SIZES.items() if self.varied == "rate" or size[1] > DEPTH}

    def carrying(self, tuned: Mapping[str, float], size: tuple[int, int]) -> ConfigDict:
        """The sweep over factors at a size, with the best numbers of `tuning`."""
        base = self.base()
        for path, value in tuned.items():
            section, field = path.split(".")
            base[section][field] = value
        sizes = {"model.width": (size[0],), "model.depth": (size[1],)}
        return self._sweep(base, {"factors": {**sizes, **self._axis(size[0]), SEED: tuple(range(SEEDS))}})

    def _axis(self, width: int) -> dict[str, Sequence[float]]:
        if self.varied == "rate":
            return {BRANCH_RATE: self.factors}
        ratio = width / _RULES_WIDTH
        return {DECAY_EXPONENT: [math.log(factor) / math.log(ratio) for factor in self.factors]}

    def factor(self, record: Record) -> float:
        """The factor of a run of `carrying`."""
        if self.varied == "rate":
            return float(record.point[BRANCH_RATE])
        return float((record.width / _RULES_WIDTH) ** record.point[DECAY_EXPONENT])

    def loss(self, record: Record) -> float:
        """The loss by which runs are compared; infinite if the run diverged."""
        value = record.test_loss if self.objective == TEST else record.train_loss_avg
        return math.inf if value is None or record.diverged_at_step is not None else value

    def lowest(self, directory: pathlib.Path) -> float:
        """The lowest mean loss over seeds of `tuning`."""
        return min(float(np.mean(losses)) for losses in self._tuned(directory).values())

    def best(self, directory: pathlib.Path) -> dict[str, float]:
        """The tuned numbers: those with the lowest mean loss over seeds."""
        losses = self._tuned(directory)
        lowest = min(losses, key=lambda values: np.mean(losses[values]))
        return dict(zip(self._paths, lowest, strict=True))

    @property
    def _paths(self) -> tuple[str, ...]:
        return (LEARNING_RATE, DECAY) if self.varied == "decay" else (LEARNING_RATE,)

    def _tuned(self, directory: pathlib.Path) -> dict[tuple[float, ...], list[float]]:
        losses: dict[tuple[float, ...], list[float]] = {}
        for record in read_sweep([directory]).records:
            values = tuple(float(record.point[path]) for path in self._paths)
            losses.setdefault(values, []).append(self.loss(record))
        return losses

    def _sweep(self, base: ConfigDict, grids: Mapping[str, Mapping[str, Sequence[Any]]]) -> ConfigDict:
        title = f"{self.network}, factors of the branches' {self.varied}"
        x = LEARNING_RATE if "base" in grids else next(iter(self._axis(WIDTH)))
        return sweep_config(base, grids, figure="factors", title=title, scale="cpu", x=x, objective=self.objective)


_NETWORKS: Mapping[str, Mapping[str, Any]] = {"plain": {}, "norm": {"norm": "layer", "block_depth": 2}}
CELLS = tuple(Cell(network, varied) for varied in ("decay", "rate") for network in _NETWORKS)
