"""Runs, sweeps, searches and studies that are killed at random times end as undisturbed ones, bit for bit."""

import inspect
import itertools
import os
import random
import signal
import time

import numpy as np
import processes
import pytest
from small_runs import a_sweep, assert_same_run, config

import depthmup_flax as dm

KILLS = int(os.environ.get("KILLS", "12"))  # of all kinds of work together

SEARCH = {
    "config.model": {"width": 16, "depth": 4, "base_width": 8, "base_depth": 2},
    "config.data": {"name": "synthetic", "train_examples": 64, "test_examples": 16},
    "config.train": {"batch_size": 8, "log_every": 2},
    "config.optimizer": {"learning_rate": 0.008},
    "proxy": {"steps": 12},
}


def train(workdir):
    return processes.train(config(checkpoint_every=5), workdir)


def sweep(workdir):
    return processes.sweep(a_sweep(rates=3), workdir, lanes=2, keep_every_s=0.0)


def tune(workdir):
    fields = [f"--{section}.{name}={value}" for section, of in SEARCH.items() for name, value in of.items()]
    words = ["--config=configs/digits.py", "--lanes=2", "--octaves=2", "--seeds=2", "--tune=learning_rate", *fields]
    return processes.command("-m", "depthmup_flax", "tune", *words, f"--workdir={workdir}", keep_every_s=0.0)


def study(workdir):
    from user_networks import RuleNet

    from depthmup_flax.search.sweep import runner

    inspect.unwrap(runner.sweep).__kwdefaults__["keep_every_s"] = 0.0
    x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(20, 2)
    data, loss = ((x[:15], x[:15]), (x[15:], x[15:])), lambda outputs, targets: ((outputs[:, :2] - targets) ** 2).mean()
    studied = dm.Study(RuleNet, data, loss=loss, base=(8, 2), steps=8, batch_size=5, workdir=workdir)
    studied.tune(learning_rate=(0.05, 0.1, 0.2), seeds=2, extend=0, lanes=2)
    return 0


def rows(workdir):
    """The records below a directory without times, by run; each run is recorded once."""
    read = dm.read_records(workdir)
    columns = {name: read[name] for name in read.keys() - {"wall_time_s", "commit"}}
    found = {run: {name: columns[name][i] for name in columns} for i, run in enumerate(columns["run"])}
    assert len(found) == len(columns["run"])
    return found


def assert_same_records(workdir, expected):
    assert rows(workdir) == rows(expected)
    for path in expected.rglob("tuned.py"):
        found = (workdir / path.relative_to(expected)).read_text()
        assert found.replace(str(workdir), str(expected)) == path.read_text()  # it names its own directory


COMPARE = {train: assert_same_run, sweep: assert_same_records, tune: assert_same_records, study: assert_same_records}


@pytest.mark.slow
@pytest.mark.parametrize("work", COMPARE)
def test_work_that_is_killed_at_random_times_ends_as_if_undisturbed(work, tmp_path):
    kills = -(-KILLS // len(COMPARE))
    rng, started = random.Random(f"{work.__name__} 0"), time.monotonic()
    whole = processes.Process(tmp_path / "whole.log", work, tmp_path / "whole")
    assert whole.wait(600) == 0, whole.text()
    duration_s, killed = time.monotonic() - started, 0
    for number in itertools.count():
        workdir, code = tmp_path / str(number), -signal.SIGKILL
        while code == -signal.SIGKILL:
            process = processes.Process(tmp_path / f"{number}.log", work, workdir)
            if killed < kills:
                process.join(rng.uniform(0.0, duration_s))
                process.send(signal.SIGKILL)
            code = process.wait(600)
            killed += code == -signal.SIGKILL
        assert code == 0, process.text()
        COMPARE[work](workdir, tmp_path / "whole")
        if killed >= kills:
            return
