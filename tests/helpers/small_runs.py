"""A small run and a small sweep for tests of faults, and how their results are compared."""

import json

import jax
import numpy as np
import orbax.checkpoint as ocp

from depthmup_flax.config import default_config
from depthmup_flax.data import LoadOnce
from depthmup_flax.search.sweep.grid import expand, sweep_config
from depthmup_flax.search.sweep.groups import plan
from depthmup_flax.search.sweep.lane_choice import GroupPrograms
from depthmup_flax.storage.sweep_records import read_record_file
from depthmup_flax.trainer.engine.device_batches import put_train_data
from depthmup_flax.trainer.engine.lanes import lane_mesh


def config(**train):
    """A run of 240 steps, evaluated and saved every 60."""
    run = default_config()
    run.model.update(width=16, depth=4)
    run.train.update(batch_size=16, steps=240, eval_every=60, log_every=20, **train)
    return run


def a_sweep(rates=9, depths=(2, 3)):
    """A sweep over rates, depths and two seeds."""
    base = default_config()
    base.model.update(width=8, depth=2)
    base.data.update(name="synthetic", train_examples=64, test_examples=16)
    base.train.update(batch_size=8, steps=6, log_every=2)
    learning_rates = [2.0**-k for k in range(4, 4 + rates)]
    grid = {"optimizer.learning_rate": learning_rates, "seed": (0, 1), "model.depth": depths}
    return sweep_config(base, {"rates": grid}, figure="faults", title="Faults.", scale="smoke")


RATE = "optimizer.learning_rate"


def small_base(model="res_mlp", **model_fields):
    """A run of 8 steps on synthetic images."""
    config = default_config(model)
    config.model.update(**{"width": 8, "depth": 2, "base_width": 8, "base_depth": 2, **model_fields})
    config.data.update(name="synthetic", train_examples=128, test_examples=40)
    config.optimizer.learning_rate = 2e-3
    config.train.update(batch_size=16, steps=8, average_steps=4, log_every=3, checkpoint=False)
    return config


def small_sweep(base=None, grids=None, **kwargs):
    """A sweep of `small_base` over three rates and two seeds, by default."""
    grids = grids or {"rates": {RATE: (1e-3, 4e-3, 1.6e-2), "seed": (0, 1)}}
    return sweep_config(base or small_base(), grids, figure="test", title="A test", scale="smoke", **kwargs)


def programs_of(config):
    """Compiles programs for the only group of ``config``."""
    (group,), mesh = plan(config, expand(config), LoadOnce()), lane_mesh()
    return GroupPrograms(group, mesh, put_train_data(group.experiment.dataset, mesh))


def last_state(workdir):
    """The state in the last checkpoint of a run."""
    steps = [int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()]
    path = workdir / "checkpoints" / str(max(steps)) / "state"
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
        dict(ocp.StandardCheckpointer().metadata(path).item_metadata),
    )
    return ocp.StandardCheckpointer().restore(path, shapes)


def assert_same_run(workdir, expected):
    """Two runs agree bit for bit in their last checkpoint, their metrics and their result, but for times."""
    jax.tree.map(np.testing.assert_array_equal, last_state(workdir), last_state(expected))
    for name, time in (("metrics.jsonl", "_per_s"), ("result.json", "wall_time_s")):
        ours, theirs = (json_without(directory / name, time) for directory in (workdir, expected))
        assert ours == theirs


def outcomes(workdir):
    """The records of a sweep without times, by run; each run is recorded once."""
    records = [record for path in workdir.glob("records*.jsonl") for record in read_record_file(path)[0]]
    assert len({record.run for record in records}) == len(records)
    return {record.run: {**vars(record), "wall_time_s": None} for record in records}


def json_without(path, key):
    """The rows of a file of JSON lines, or the one object of another, without the fields that end in ``key``."""
    text = path.read_text()
    rows = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
    return [{name: value for name, value in row.items() if not name.endswith(key)} for row in rows]
