"""The runs of a grid, its shards and extensions, what is wrong with it, and what a dry run says of it."""

import math

import jax
import numpy as np
import pytest
from planted_sweeps import record_with
from processes import ROOT
from small_runs import RATE, small_sweep

from depthmup_flax import at_scale, sweep_config
from depthmup_flax.config import from_file
from depthmup_flax.config.fields import default_config
from depthmup_flax.search.sweep.grid import curves, expand, extension, next_value, shard_of
from depthmup_flax.search.sweep.groups import dry_run
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.util.errors import InputError


def test_shards_split_the_cost_evenly_and_no_curve():
    grids = {"rates": {RATE: (1e-3, 4e-3), "model.depth": (2, 4, 8, 16), "model.width": (8, 16), "seed": (0, 1)}}
    runs = expand(small_sweep(grids=grids))
    cost = {run.hash: float(run.config.model.depth) for run in runs}
    shards = [shard_of(runs, RATE, (i, 3), cost) for i in range(3)]
    assert sorted(run.hash for shard in shards for run in shard) == sorted(run.hash for run in runs)
    total = sum(cost.values())
    assert max(sum(cost[run.hash] for run in shard) for shard in shards) < 0.6 * total
    owners = [{i for i, shard in enumerate(shards) if run in shard} for curve in curves(runs, RATE) for run in curve]
    assert all(len(owner) == 1 for owner in owners)


BAD = [
    ({"optimizer.lr": (1.0,)}, {}, "config.grids.g.optimizer.lr"),
    ({RATE: ()}, {}, "config.grids.g.optimizer.learning_rate"),
    ({RATE: (1e-3, 2e-3, 1e-3)}, {}, "config.grids.g.optimizer.learning_rate"),
    ({"seed": (0,)}, {}, "config.x is 'optimizer.learning_rate'"),
    ({RATE: (1e-3,), "model.depth": (2, 0)}, {}, "in the runs with depth 0: model.depth is 0"),
    ({RATE: (1e-3,), "optimizer.warmup_steps": (0, 8)}, {}, "optimizer.warmup_steps is 8"),
    ({RATE: (1e-3,), "parametrization.preset": ("mup", "nup")}, {}, "parametrization.preset is 'nup'"),
    (
        {RATE: (1e-3,), "optimizer.name": ("sgd",), "parametrization.preset": ("depth_mup", "block_only")},
        {},
        "block_only",
    ),
    ({}, {}, "config.grids.g is empty"),
    ({RATE: (1e-3,)}, {"extend": -1}, "config.extend is -1"),
    ({RATE: (1e-3,), "model.depth": (2, 4)}, {"x": "model.depth"}, "config.x is 'model.depth'"),
    ({"optimizer.warmup_steps": (1, 2)}, {"x": "optimizer.warmup_steps", "extend": 1}, "config.extend is 1"),
    ({"optimizer.kwargs.b2": (0.9, 0.99)}, {"x": "optimizer.kwargs.b2", "extend": 1}, "config.extend is 1"),
]


@pytest.mark.parametrize(("grid", "kwargs", "names"), BAD)
def test_a_bad_grid_is_refused_before_anything_trains(tmp_path, grid, kwargs, names):
    with pytest.raises(InputError) as error:
        sweep(small_sweep(grids={"g": grid}, **kwargs), tmp_path / "sweep")
    assert names in str(error.value)
    assert not (tmp_path / "sweep").exists()


def test_a_single_value_is_an_axis_of_one_and_numbers_of_numpy_are_numbers():
    grids = {"g": {RATE: np.float32([0.25, 0.5]), "seed": np.arange(2), "model.depth": 2, "model.nonlinearity": "relu"}}
    runs = expand(small_sweep(grids=grids))
    assert len(runs) == 4
    assert runs[0].point == {RATE: 0.25, "seed": 0, "model.depth": 2, "model.nonlinearity": "relu"}


def test_every_shipped_sweep_is_a_grid_of_the_data_that_it_names():
    for path in (ROOT / "configs" / "sweeps").glob("*.py"):
        runs = expand(from_file(path, "smoke"))
        assert len({run.hash for run in runs}) == len(runs) > 1, path


def test_a_scale_that_there_is_not_names_those_there_are():
    with pytest.raises(InputError, match=r"config\.scale is 'huge': use one of smoke, cpu, long, gpu10, gpu, paper"):
        at_scale("huge", smoke=1, other=2)
    assert at_scale("gpu", smoke=1, other=2) == 2


GRID = {RATE: (1e-3, 2e-3), "model.depth": (2, 4), "seed": (0, 1)}


def test_a_dry_run_counts_runs_parameters_and_steps_and_compiles_nothing(monkeypatch):
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *args, **kwargs: pytest.fail("compiles"))
    text = dry_run(small_sweep(grids={"rates": GRID}))
    assert "8 runs in 2 compiled groups" in text
    # 8x8 synthetic color images: 192 inputs, 10 classes.
    parameters = 192 * 8 + 2 * 64 + 80
    assert f" {parameters:,} " in text
    assert "  depth 2\n" in text
    assert "0.001, 0.002" in text
    assert f"{8 * small_sweep().base.train.steps:,} steps in all" in text
    half = dry_run(small_sweep(grids={"rates": {path: GRID[path] for path in (RATE, "model.depth")}}), shard=(0, 2))
    assert "in 1 compiled groups in shard 0/2" in half


def test_a_dry_run_needs_no_data_of_a_published_set(tmp_path):
    config = small_sweep(grids={"rates": GRID})
    config.base.data.update(name="tfds:cifar10", data_dir=str(tmp_path), train_examples=0, test_examples=0)
    assert "8 runs" in dry_run(config)
    config.base.data.name = "tfds:no_such_set"
    with pytest.raises(InputError, match="no_such_set"):
        dry_run(config)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({1.0: 3.0, 2.0: 2.0, 4.0: 1.0}, 8.0),
        ({1.0: 1.0, 2.0: 2.0, 4.0: 3.0}, 0.5),
        ({1.0: 2.0, 2.0: 1.0, 4.0: 3.0}, None),
        ({1.0: 2.0, 2.0: 1.0, 4.0: math.inf}, None),  # divergence is an end, too
        ({1.0: math.inf, 2.0: math.inf}, 0.5),
        ({1.0: 1.0}, None),
        ({0.0: 1.0, 0.9: 2.0}, None),  # no ratio
    ],
)
def test_the_next_value_continues_the_ratio_beyond_the_minimum(losses, expected):
    assert next_value(losses) == expected


@pytest.mark.parametrize(("known", "expected"), [((), 0.2), ((0.20000000000000004,), 0.20000000000000004)])
def test_an_extended_value_is_that_of_a_longer_grid_or_one_that_was_run(known, expected):
    """0.1^2 / 0.05 is 0.20000000000000004, another run than 0.2."""
    grids = {"rates": {RATE: (0.05, 0.1)}}
    config = sweep_config(default_config(), grids, figure="test", title="A test", scale="smoke", extend=1)
    runs = expand(config)
    planted = {run.hash: (run.point[RATE], 1 - run.point[RATE]) for run in runs}
    planted |= {str(rate): (rate, 1.0) for rate in known}
    done = {run: record_with(point={RATE: rate}, train_loss_avg=loss) for run, (rate, loss) in planted.items()}
    (((run,), _),) = extension(config, runs, done)
    assert run.point[RATE] == expected
