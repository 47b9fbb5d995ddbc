"""The cells: a network, its data, an optimizer and a start, from base 32 x 4; each is a sweep of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config
from depthmup_flax.search.sweep.grid import powers_of_two, sweep_config
from depthmup_flax.storage.sweep_records import LEARNING_RATE, SEED

WIDTH, DEPTH, TIMES = 32, 4, 4
RANDOM, ZERO, SMALL = "random", "zero", "small"
STARTS = (RANDOM, ZERO, SMALL)
EIGHTH = 8.0  # by how much the small start's readout is smaller than the random one's
WIDER, DEEPER, BOTH = (WIDTH * TIMES, DEPTH), (WIDTH, DEPTH * TIMES), (WIDTH * TIMES, DEPTH * TIMES)
MUON_SEEDS = 3
EXTENSIONS = 2  # values that may be added at each end of the grid of rates

_CIFAR = {"name": "tfds:cifar10", "image_size": 16, "train_examples": 9600, "test_examples": 500}
_TEXT = {"name": "python:reproduction.drift.data:characters"}


@dataclasses.dataclass(frozen=True)
class Network:
    """A network and its data."""

    model: str
    data: Mapping[str, Any]
    rates: Mapping[str, tuple[int, int]]  # optimizer -> lowest and highest power of two
    steps: int
    batch_size: int
    seeds: int
    sizes: Sequence[tuple[int, int]] = (WIDER, DEEPER)  # beside the base
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the model
    schedule: str = "constant"


SCHEDULES = ("cosine", "linear", "wsd", "rsqrt")  # those of today.md, beside the constant rate
_MLP = Network(
    model="res_mlp",
    data=_CIFAR,
    rates={"adam": (-13, -6), "sgd": (-9, -2), "muon": (-8, -4), "adamh": (-8, -2)},
    steps=150,
    batch_size=64,
    seeds=5,
    sizes=((2 * WIDTH, DEPTH), WIDER, (8 * WIDTH, DEPTH), DEEPER, BOTH),
)
NETWORKS: Mapping[str, Network] = {
    "mlp": _MLP,
    "mlp, nonlinearity first": dataclasses.replace(_MLP, fields={"pre_nonlin": True}),
    **{f"mlp, {one}": dataclasses.replace(_MLP, schedule=one, sizes=(BOTH,)) for one in SCHEDULES},
    "gpt": Network(
        model="gpt",
        data=_TEXT,
        rates={"adam": (-9, -5), "sgd": (-4, 1), "muon": (-8, -4)},
        steps=200,
        batch_size=8,
        seeds=2,
    ),
    "vit": Network(
        model="vit",
        data=_CIFAR,
        rates={"adam": (-12, -8), "sgd": (-6, -1), "muon": (-9, -4)},
        steps=200,
        batch_size=16,
        seeds=2,
        fields={"patch_size": 4},
    ),
    "conv": Network(
        model="simple_resnet",
        data=_CIFAR,
        rates={"adam": (-10, -6), "sgd": (-6, -2), "muon": (-9, -5), "adamh": (-8, -4)},
        steps=200,
        batch_size=32,
        seeds=2,
    ),
}


_BENCHMARK = "python:reproduction.rules.version2.data:"


def _registered(model: str, data: str, optimizer: str, rates: tuple[int, int], **others: Any) -> Network:
    """A network of the ten cells: other data and a decay to zero, at base and at both times four."""
    usual = {"steps": 400, "batch_size": 64, "seeds": 3, "sizes": (BOTH,), "schedule": "cosine"}
    return Network(model, {"name": data}, {optimizer: rates}, **{**usual, **others})


_SMALL = {"num_heads": 2, "mlp_ratio": 2}
_LARGER = {"steps": 200, "batch_size": 8}
# One optimizer for each; ``transfer.md`` registers them.
TEN: Mapping[str, Network] = {
    "ten, digits": _registered("res_mlp", f"{_BENCHMARK}digits", "adam", (-8, -4)),
    "ten, digits, nonlinearity first": _registered(
        "res_mlp", f"{_BENCHMARK}digits", "adam", (-9, -5), fields={"pre_nonlin": True}
    ),
    "ten, digits, sgd": _registered("res_mlp", f"{_BENCHMARK}digits", "sgd", (-5, -1)),
    "ten, digits, muon": _registered("res_mlp", f"{_BENCHMARK}digits", "muon", (-8, -4), steps=200),
    "ten, teacher": _registered("res_mlp", f"{_BENCHMARK}teacher", "adam", (-8, -4)),
    "ten, teacher, adamh": _registered("res_mlp", f"{_BENCHMARK}teacher", "adamh", (-7, -3)),
    "ten, teacher, two matrices": _registered(
        "res_mlp", f"{_BENCHMARK}teacher", "adam", (-8, -4), fields={"block_depth": 2, "norm": "layer"}
    ),
    "ten, characters": _registered(
        "res_mlp", "python:reproduction.depth.text:load", "adam", (-9, -5), schedule="constant"
    ),
    "ten, waves, vit": _registered(
        "vit", f"{_BENCHMARK}gratings", "adam", (-9, -6), fields={**_SMALL, "patch_size": 4}, **_LARGER
    ),
    "ten, pairs, gpt": _registered("gpt", f"{_BENCHMARK}pairs", "adam", (-8, -5), fields=_SMALL, **_LARGER),
}


KNOWN = {**NETWORKS, **TEN}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A sweep over rates and sizes from one start."""

    network: str
    optimizer: str
    start: str
    times: int = 1  # the steps of the network

    @property
    def name(self) -> str:
        """Of its directory."""
        length = f"-x{self.times}" if self.times > 1 else ""
        return f"{self.network.replace(', ', '-').replace(' ', '-')}-{self.optimizer}{length}-{self.start}"

    @property
    def seeds(self) -> int:
        """Their number: at most `MUON_SEEDS` with Muon, whose step takes ten times as long on a CPU."""
        seeds = KNOWN[self.network].seeds
        return min(seeds, MUON_SEEDS) if self.optimizer == "muon" else seeds

    def base(self) -> ConfigDict:
        """The config of the base: a constant rate after a tenth of warm-up; the loss is the mean of the last tenth."""
        network = KNOWN[self.network]
        steps = network.steps * self.times
        config = default_config(network.model)
        config.model.update(width=WIDTH, depth=DEPTH, base_width=WIDTH, base_depth=DEPTH, **network.fields)
        config.data.update(network.data)
        config.optimizer.update(name=self.optimizer, warmup_steps=steps // 10, schedule=network.schedule)
        tenth = steps // 10
        config.train.same_code = True  # the list of cells may grow; the data's checksum is in the records
        config.train.update(steps=steps, batch_size=network.batch_size, average_steps=tenth, log_every=tenth)
        config.model.zero_init_readout = self.start == ZERO
        if self.start == SMALL:
            config.parametrization.update(small_readout(self.optimizer))
        return config

    def sweep(self) -> ConfigDict:
        """The config of the sweep."""
        network = KNOWN[self.network]
        cheap = self.optimizer != "muon" or self.network in TEN
        exponents = network.rates[self.optimizer]
        rates = {LEARNING_RATE: powers_of_two(*exponents), SEED: tuple(range(self.seeds))}
        grids = {
            f"{width} x {depth}": {"model.width": (width,), "model.depth": (depth,), **rates}
            for width, depth in ((WIDTH, DEPTH), *network.sizes)
            if cheap or width * depth <= WIDTH * DEPTH * TIMES
        }
        title = f"{self.network}, {self.optimizer}, {self.start} readout"
        return sweep_config(self.base(), grids, figure="drift", title=title, scale="cpu", extend=EXTENSIONS)


def small_readout(optimizer: str) -> dict[str, float]:
    """Fields of the rule with which the readout starts `EIGHTH` times smaller, and all else is the same.

    gamma0 divides the output and multiplies all updates, Adam's once and SGD's twice. The readout's product with
    1 / gamma0 then moves as before; of the other roles the factors below take it back.
    """
    factor = 1 / EIGHTH ** (2 if optimizer == "sgd" else 1)
    others = ("input", "hidden", "vector")
    return {"gamma0": EIGHTH, **{f"{role}_lr_factor": factor for role in others}}


def _cells(network: str, optimizers: Sequence[str], starts: Sequence[str], times: int = 1) -> list[Cell]:
    return [Cell(network, optimizer, start, times) for optimizer in optimizers for start in starts]


_PAIR = (RANDOM, ZERO)
# In the order in which they are run: what decides a default first.
CELLS: Sequence[Cell] = (
    *_cells("mlp", ("adam", "sgd", "adamh", "muon"), _PAIR),
    *_cells("gpt", ("adam",), _PAIR),
    *_cells("vit", ("adam",), _PAIR),
    *_cells("conv", ("sgd",), _PAIR),
    *_cells("mlp", ("adam",), (SMALL,)),
    *(cell for one in SCHEDULES for cell in _cells(f"mlp, {one}", ("adam",), (ZERO,))),
    *_cells("mlp, nonlinearity first", ("adam",), _PAIR),
    *_cells("mlp", ("adam",), _PAIR, times=4),
    *_cells("conv", ("adam",), _PAIR),
    # Not AdamH: queries start at zero, and its updates follow their norm.
    *_cells("gpt", ("muon",), _PAIR),
    *_cells("vit", ("muon",), _PAIR),
    *_cells("mlp", ("sgd", "adamh", "muon"), (SMALL,)),
    *_cells("gpt", ("adam",), (SMALL,)),
    *_cells("vit", ("adam",), (SMALL,)),
    *_cells("conv", ("sgd",), (SMALL,)),
    *_cells("conv", ("adamh", "muon"), _PAIR),
    *_cells("gpt", ("sgd",), _PAIR),
    *_cells("vit", ("sgd",), _PAIR),
    *_cells("mlp", ("adam",), _PAIR, times=20),
)
TEN_CELLS: Sequence[Cell] = tuple(
    Cell(name, optimizer, start) for name, network in TEN.items() for optimizer in network.rates for start in _PAIR
)
