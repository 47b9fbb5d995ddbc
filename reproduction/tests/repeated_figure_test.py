"""One seed of a committed figure is trained again and compared with its record."""

import numpy as np
import pytest
from data_sets import real_data
from processes import ROOT

from depthmup_flax.config import from_file
from depthmup_flax.search.sweep.runner import sweep
from depthmup_flax.storage.sweep_records import SEED, read_sweep

LANES_DIFFER_BY = (
    0.02  # losses of one run in programs of other lanes, at most; more beyond the best rate, where losses jump
)
RATE, DEPTH = "optimizer.learning_rate", "model.depth"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "data"), [("digits", None), pytest.param("ode_sde", "tfds/cifar10", id="ode_sde")])
def test_a_seed_trained_again_has_the_recorded_losses(name, data, tmp_path):
    recorded = read_sweep([ROOT / "reproduction" / "records" / f"{name}-cpu"]).records
    places = (ROOT, ROOT / "reproduction")
    path = next(path for place in places if (path := place / f"configs/sweeps/{name}.py").exists())
    config = from_file(path, "cpu")
    if data:
        config.base.data.data_dir = str(real_data(data).parent)
    (grid,) = config.grids.values()
    grid.update({"seed": (0,)})
    grid.parametrization.preset, grid.model.depth = ("depth_mup",), grid.model.depth[:2]
    config.extend = 0
    again = {record.run: record for record in sweep(config, tmp_path / "again")}
    losses = {record.run: record.train_loss_avg for record in recorded}
    best = {
        depth: min((losses[run], one.point[RATE]) for run, one in again.items() if one.point[DEPTH] == depth)[1]
        for depth in grid.model.depth
    }
    stable = [(run, one) for run, one in again.items() if one.point[RATE] <= best[one.point[DEPTH]]]
    differences = np.array([record.train_loss_avg - losses[run] for run, record in stable])
    assert len(again) == 2 * len(grid.optimizer.learning_rate)
    assert np.median(np.abs(differences)) < 1e-3
    assert np.abs(differences).max() < LANES_DIFFER_BY
    # Another seed is no repetition: its losses differ by more.
    other = {tuple(_point(record).values()): record.train_loss_avg for record in recorded if record.seed == 1}
    between = [record.train_loss_avg - other[tuple(_point(record).values())] for record in again.values()]
    assert np.median(np.abs(between)) > 3e-3


def _point(record):
    return {path: value for path, value in sorted(record.point.items()) if path != SEED}
