"""Ladders, healthy targets and targets with faults, for the measurement in course.py.

cd docs/forecasts
DATA_DIR=TFDS TEXT=tinyshakespeare.txt depthmup sweep --config=course_runs.py:mlp --workdir=runs/course_mlp-cpu
"""

import functools
import math
import os
import pathlib

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax import sweep_config
from depthmup_flax.config import from_file
from depthmup_flax.config.fields import field_paths, get_field
from depthmup_flax.data import DataConfig, load
from depthmup_flax.search.forecast.ladder import Size, rung_config

SEEDS, FAULT_SEEDS = 24, 8
_SMALL = ((8, 1), (8, 2), (16, 1), (16, 2), (16, 4), (32, 2), (32, 4))
_WIDE = ((16, 1), (16, 2), (16, 4), (32, 2), (32, 4), (64, 2), (64, 4))
_CONV = ((8, 3), (8, 4), (8, 6), (16, 3), (16, 6), (24, 4), (24, 6))
_at = lambda steps, sizes: tuple((width, depth, steps) for width, depth in sizes)
# name: tuned config, data, steps between rows, rungs and targets (width, depth, steps). Faults are of the first target.
FAMILIES = {
    "digits": ("digits_deep", "digits", 2, _at(200, _SMALL), _at(200, ((128, 32), (64, 16)))),
    "mlp": ("mlp.py", "cifar10", 4, _at(400, _WIDE), _at(400, ((128, 16), (64, 16)))),
    "gpt": ("gpt.py", "text", 2, _at(200, _SMALL), _at(200, ((48, 6), (64, 4)))),
    "conv": ("conv.py", "cifar10", 2, _at(200, _CONV), _at(200, ((40, 9), (32, 12)))),
    "mlp_steps": (
        "mlp.py",
        "cifar10",
        2,
        tuple((width, 4, steps) for width in (16, 32, 64) for steps in (100, 200, 400)),
        _at(800, ((128, 4),)),
    ),
}
_RATES = {"digits": 0.0034}
_WINDOW, _STRIDE = 32, 8


def faults(target: ConfigDict, data: str) -> dict[str, dict[str, object]]:
    """Name of a fault -> the fields that it changes."""
    rate = target.optimizer.learning_rate
    return {
        "rate x 2": {"optimizer.learning_rate": 2 * rate},
        "rate x 4": {"optimizer.learning_rate": 4 * rate},
        "rate / 2": {"optimizer.learning_rate": rate / 2},
        "10 % of labels permuted": {"data.name": f"python:course_runs:{data}_10"},
        "25 % of labels permuted": {"data.name": f"python:course_runs:{data}_25"},
        "1/sqrt(L) forgotten": {
            "parametrization.branch_multiplier": math.sqrt(target.model.depth / target.model.base_depth)
        },
        "width's factors forgotten": {"parametrization.preset": "sp_sqrt_depth"},
        "SP": {"parametrization.preset": "sp"},
    }


def get_config(family: str) -> ConfigDict:
    """The sweep of a family."""
    parent, data, log_every, rungs, targets = FAMILIES[family]
    tuned = from_file(pathlib.Path(__file__).with_name(parent) if parent.endswith(".py") else parent)
    tuned.data.update(
        name=f"python:course_runs:{data}_0",
        data_dir="",
        image_size=0,
        augment="none",
        context=64,
        test_examples=0 if data == "digits" else 500,
    )
    tuned.optimizer.learning_rate = _RATES.get(family, tuned.optimizer.learning_rate)
    tuned.parametrization.branch_multiplier = 1.0
    tuned.train.epochs = 0.0

    def at(width: int, depth: int, steps: int) -> ConfigDict:
        length, size = tuned.train.steps, Size(width, depth, steps)
        config = rung_config(tuned, length, length, size, tuned.train.batch_size)
        config.train.update(steps=steps, log_every=log_every)
        return config

    configs = [(at(*size), SEEDS) for size in (*targets, *rungs)]
    for fields in faults(configs[0][0], data).values():
        wrong = at(*targets[0])
        wrong.update_from_flattened_dict(fields)
        configs.append((wrong, FAULT_SEEDS))
    base = configs[0][0]
    axes = [path for path in field_paths(base) if len({repr(get_field(config, path)) for config, _ in configs}) > 1]
    grids = {
        f"runs{k}": {**{path: (get_field(config, path),) for path in axes}, "seed": range(seeds)}
        for k, (config, seeds) in enumerate(configs)
    }
    return sweep_config(base, grids, figure="course", title="The course of a forecast", scale="cpu")


@functools.cache
def _images(name: str, side: int):
    data_dir = os.environ.get("DATA_DIR", "") if name.startswith("tfds:") else ""
    data = load(DataConfig(name=name, image_size=side, data_dir=data_dir))
    prepare = lambda key, batch: data.prepare("none", None, {"image": batch[0], "label": batch[1]})
    pair = lambda split: (split.arrays()["image"], split.arrays()["label"])
    return pair(data.train), pair(data.test), prepare


@functools.cache
def _text():
    text = np.frombuffer(pathlib.Path(os.environ["TEXT"]).read_bytes(), np.uint8)
    tokens = np.unique(text, return_inverse=True)[1].astype(np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, _WINDOW + 1)[::_STRIDE]
    cut = len(windows) * 9 // 10
    pair = lambda part: (part[:, :-1].copy(), part[:, 1:].copy())
    return pair(windows[:cut]), pair(windows[cut:])


_LOADERS = {"digits": lambda: _images("digits", 0), "cifar10": lambda: _images("tfds:cifar10", 16), "text": _text}


def _permuted(percent: int, train, *rest):
    """The data with the targets of a part of the training examples permuted among these."""
    inputs, targets = train
    random, targets = np.random.default_rng(0), targets.copy()
    chosen = random.permutation(len(targets))[: len(targets) * percent // 100]
    targets[chosen] = random.permutation(targets[chosen].ravel()).reshape(targets[chosen].shape)
    return (inputs, targets), *rest


def __getattr__(name: str):
    """``cifar10_25``: loads CIFAR-10 with 25 % of the training labels permuted."""
    data, _, percent = name.rpartition("_")
    if data not in _LOADERS:
        raise AttributeError(name)
    return lambda: _permuted(int(percent), *_LOADERS[data]())
