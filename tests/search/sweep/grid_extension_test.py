"""The grid grows where a curve's minimum lies at its edge."""

import dataclasses
import math

import pytest

from depthmup_flax.config import default_config
from depthmup_flax.search.sweep.grid import expand, extension, next_value, sweep_config
from depthmup_flax.storage.records.table import COMPLETED, Record

RATE = "optimizer.learning_rate"


def record(rate, loss):
    fields = dict.fromkeys(field.name for field in dataclasses.fields(Record))
    return Record(**fields | {"status": COMPLETED, "point": {RATE: rate}, "train_loss_avg": loss})


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
    done = {run.hash: record(run.point[RATE], 1 - run.point[RATE]) for run in runs}
    done |= {str(rate): record(rate, 1.0) for rate in known}
    (((run,), _),) = extension(config, runs, done)
    assert run.point[RATE] == expected
