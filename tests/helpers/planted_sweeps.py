"""Sweeps with planted optima: records without training."""

import dataclasses
import itertools
import math

import numpy as np

from depthmup_flax.report.tables import as_data
from depthmup_flax.report.transfer import analyze
from depthmup_flax.storage.files import JsonLines
from depthmup_flax.storage.run_hash import run_hash_at
from depthmup_flax.storage.sweep_records import Record, Sweep, SweepInfo, info_to_json

X = "optimizer.learning_rate"
MULTIPLIER = "parametrization.branch_multiplier"
RATES = tuple(2.0**k for k in range(-12, -3))


def record(run, point, loss, *, width=64, depth=4):
    """A run that completed with a loss, or with ``None`` diverged half-way."""
    width, depth = point.get("model.width", width), point.get("model.depth", depth)
    slices = [1.0 if loss is None else loss + 1.0, loss]
    return Record(
        run=run,
        status="diverged" if loss is None else "completed",
        point=point,
        width=width,
        depth=depth,
        parameters=width * width * depth,
        seed=point.get("seed", 0),
        steps=20,
        train_loss=loss,
        train_loss_avg=loss,
        slice_steps=10,
        train_loss_slices=slices,
        test_loss=loss,
        test_accuracy=None,
        diverged_at_step=15 if loss is None else None,
        wall_time_s=1.0,
        lanes=1,
        device="1 x test",
        versions={"python": "3"},
        commit="abc",
    )


def record_with(**fields):
    """A completed run of which a test reads some fields alone."""
    unknown = dict.fromkeys(field.name for field in dataclasses.fields(Record))
    return Record(**unknown | {"status": "completed"} | fields)


def sweep_of(loss, axes, *, title="A sweep", model=None, x=X):
    """All points of a grid; ``loss(point)`` is the loss, or ``None`` for a diverged run."""
    model = {"width": 64, "depth": 4, "base_width": 64, "base_depth": 4} if model is None else model
    info = SweepInfo("test", title, "smoke", x, {k: list(v) for k, v in axes.items()}, {"model": model})
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return Sweep(info, [record(run_hash_at(info.base, point), point, loss(point)) for point in points], [])


def write(directory, sweep):
    """The sweep's files in a new directory."""
    directory.mkdir()
    (directory / "sweep.json").write_text(info_to_json(sweep.info))
    writer = JsonLines(directory / "records.jsonl")
    writer.write(map(dataclasses.asdict, sweep.records))
    writer.close()
    return directory


def study_of(sweep):
    """A sweep analyzed along x, as if its axes were the whole planned grid."""
    return analyze(sweep.info, sweep.records)


def data_of(sweep):
    """The content of ``report.json``."""
    return as_data(sweep, study_of(sweep))


def parabola(point, *, best=-8.0, noise=0.0, seed=0):
    """0.5 + 0.1 (log2 x - best)^2, with an optimum that moves between seeds."""
    shift = noise * np.random.default_rng((seed, point.get("seed", 0))).normal()
    return 0.5 + 0.1 * (math.log2(point[X]) - best - shift) ** 2
