"""Ladders, healthy targets and targets with faults, on which the course of a forecast is checked (course.py).

cd docs/forecasts; DATA_DIR=TFDS TEXT=tinyshakespeare.txt depthmup sweep --config=course_runs.py:mlp --workdir=../reproduction/course_mlp-cpu
"""

import functools
import math
import os

import numpy as np
from ml_collections import ConfigDict

from depthmup_flax.config import from_file
from depthmup_flax.data import DataConfig, load
from depthmup_flax.forecast.ladder import Size, rung_config
from depthmup_flax.sweep import sweep_config

SEEDS, FAULT_SEEDS, ROWS = 24, 8, 100
# name: parent, data, steps, rungs (width, depth), targets; faults are of the first target.
FAMILIES = {
    "digits": (
        "digits_deep",
        "digits",
        200,
        ((8, 1), (8, 2), (16, 1), (16, 2), (16, 4), (32, 2), (32, 4)),
        ((128, 32), (64, 16)),
    ),
    "mlp": (
        "mlp.py",
        "cifar10",
        400,
        ((16, 1), (16, 2), (16, 4), (32, 2), (32, 4), (64, 2), (64, 4)),
        ((128, 16), (64, 16)),
    ),
    "gpt": ("gpt.py", "text", 200, ((8, 1), (8, 2), (16, 1), (16, 2), (16, 4), (32, 2), (32, 4)), ((48, 6), (64, 4))),
    "conv": (
        "conv.py",
        "cifar10",
        200,
        ((8, 3), (8, 4), (8, 6), (16, 3), (16, 6), (24, 4), (24, 6)),
        ((40, 9), (32, 12)),
    ),
}
_RATES = {"digits": 0.0034}
_WINDOW, _STRIDE = 32, 8


def get_config(family: str) -> ConfigDict:
    """The sweep of a family."""
    parent, data, steps, rungs, targets = FAMILIES[family]
    tuned = from_file(parent)
    tuned.data.update(
        name=f"python:course_runs:{data}_0",
        data_dir="",
        image_size=0,
        augment="none",
        context=64,
        test_examples=0 if data == "digits" else 500,
    )
    tuned.optimizer.learning_rate = _RATES.get(family, tuned.optimizer.learning_rate)
    tuned_steps = tuned.train.steps
    base = rung_config(tuned, tuned_steps, tuned_steps, Size(*targets[0], steps), tuned.train.batch_size)
    base.train.update(steps=steps, log_every=steps // ROWS, epochs=0.0)
    rate, depth = base.optimizer.learning_rate, targets[0][1]
    faults = {
        "rate_x2": {"optimizer.learning_rate": 2 * rate},
        "rate_x4": {"optimizer.learning_rate": 4 * rate},
        "rate_half": {"optimizer.learning_rate": rate / 2},
        "labels_10": {"data.name": f"python:course_runs:{data}_10"},
        "labels_25": {"data.name": f"python:course_runs:{data}_25"},
        "no_depth": {"parametrization.branch_multiplier": math.sqrt(depth / base.model.base_depth)},
        "no_width": {"parametrization.preset": "sp_sqrt_depth"},
        "sp": {"parametrization.preset": "sp"},
    }
    healthy = {
        "optimizer.learning_rate": rate,
        "data.name": base.data.name,
        "parametrization.branch_multiplier": 1.0,
        "parametrization.preset": "depth_mup",
    }
    sizes = [{"model.width": width, "model.depth": depth} for width, depth in (*rungs, *targets)]
    points = [{**size, **healthy, "seed": range(SEEDS)} for size in sizes]
    points += [{**sizes[len(rungs)], **healthy, **fault, "seed": range(FAULT_SEEDS)} for fault in faults.values()]
    grids = {
        f"grid{k}": {path: v if path == "seed" else (v,) for path, v in point.items()} for k, point in enumerate(points)
    }
    return sweep_config(base, grids, figure="course", title="The course of a forecast", scale="cpu")


@functools.cache
def _images(name: str, side: int):
    data = load(DataConfig(name=name, image_size=side, data_dir=os.environ.get("DATA_DIR", "") if side else ""))
    prepare = lambda key, batch: data.prepare("none", None, {"image": batch[0], "label": batch[1]})
    pair = lambda split: (split.arrays()["image"], split.arrays()["label"])
    return pair(data.train), pair(data.test), prepare


@functools.cache
def _text():
    text = np.frombuffer(open(os.environ["TEXT"], "rb").read(), np.uint8)
    tokens = np.unique(text, return_inverse=True)[1].astype(np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, _WINDOW + 1)[::_STRIDE]
    cut = len(windows) * 9 // 10
    pair = lambda part: (part[:, :-1].copy(), part[:, 1:].copy())
    return pair(windows[:cut]), pair(windows[cut:])


def _permuted(percent: int, train, *rest):
    """The data with the targets of a part of the training examples permuted among these."""
    inputs, targets = train
    random, targets = np.random.default_rng(0), targets.copy()
    chosen = random.permutation(len(targets))[: len(targets) * percent // 100]
    flat = targets[chosen].ravel()
    targets[chosen] = random.permutation(flat).reshape(targets[chosen].shape)
    return (inputs, targets), *rest


def __getattr__(name: str):
    data, _, percent = name.rpartition("_")
    loaders = {
        "digits": lambda: _images("digits", 0),
        "cifar10": lambda: _images("tfds:cifar10", 16),
        "text": _text,
    }
    if data not in loaders:
        raise AttributeError(name)
    return lambda: _permuted(int(percent), *loaders[data]())
